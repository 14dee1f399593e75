#pragma once

// A file as torch.save() writes it: a zip archive of a pickle and of storages, none compressed.

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <string>

#include "base/status.h"
#include "models/pickle.h"

namespace elixir {

// Read without running what is in it (models/pickle.h). Holds no tensor's values.
class TorchFile {
 public:
  // kBadInput, with the path: it cannot be read, or is no such file.
  static Result<TorchFile> open(const std::string& path);
  TorchFile(TorchFile&&) noexcept;
  ~TorchFile();

  const pickle::Document& document() const { return document_; }
  // The values of a tensor (pickle::Kind::kTensor), FP32, in the order of its indices. Its storage
  // is in memory meanwhile. kBadInput: it is not of floating type, or is not in the file.
  Result<at::Tensor> read(const pickle::Value& tensor) const;

 private:
  struct Archive;
  TorchFile();

  std::string path_;
  std::unique_ptr<Archive> archive_;
  pickle::Document document_;
};

// Writes the value, which torch.load(weights_only=True) reads: dicts, lists, tuples, numbers,
// texts, tensors. Of these each is read from memory once, so that mapped files need not fit it. The
// file appears whole or not at all, and over no other (checkpoint/new_file.h).
Status write_torch_file(const std::string& path, const at::IValue& value);

}  // namespace elixir
