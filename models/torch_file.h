#pragma once

// Files of torch.save(): a zip archive of a pickle and of storages, without compression.

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <string>

#include "base/status.h"
#include "models/pickle.h"

namespace elixir {

// Such a file, opened for reading. It runs nothing of its content (models/pickle.h) and holds no
// tensor's values.
class TorchFile {
 public:
  // kBadInput, with the path: the file cannot be read, or has another format.
  static Result<TorchFile> open(const std::string& path);
  TorchFile(TorchFile&&) noexcept;
  ~TorchFile();

  const pickle::Document& document() const { return document_; }
  // The values of a tensor (pickle::Kind::kTensor), FP32, in the order of its indices. Its whole
  // storage is in memory during the call. kBadInput: the type is no floating type, or the storage
  // is missing in the file.
  Result<at::Tensor> read(const pickle::Value& tensor) const;

 private:
  struct Archive;
  TorchFile();

  std::string path_;
  std::unique_ptr<Archive> archive_;
  pickle::Document document_;
};

// Writes a value that torch.load(weights_only=True) can read: dicts, lists, tuples, numbers, texts,
// tensors. Each tensor is read from memory once, so tensors in mapped files may be larger than
// memory. The file appears whole or not at all, and never replaces another one
// (checkpoint/new_file.h).
Status write_torch_file(const std::string& path, const at::IValue& value);

}  // namespace elixir
