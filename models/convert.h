#pragma once

// A checkpoint's optimizer states out to a file that torch.load() reads, and in from one.

#include <optional>
#include <string>
#include <vector>

#include "base/compute_type.h"
#include "base/status.h"
#include "checkpoint/stored_folder.h"

namespace elixir {

// Elements that are in memory at a time.
inline constexpr uint64_t kConvertBlockNumel = uint64_t{1} << 20;

struct ExportRequest {
  std::string checkpoint = {};
  std::string torch_file = {};    // of torch.optim.AdamW.state_dict(), and "param_names"
  std::string masters_file = {};  // a safetensors file of FP32 masters; "": none
  std::string names_file = {};    // the order of the parameters; "": that of the model
};

// kBadInput: the checkpoint is not valid (all of it is read and compared first), has no states, or
// has values that are not finite;
// kInvalidArgument: names that are not those of the checkpoint; a file that is there already, or
// cannot be made.
Status export_torch(const ExportRequest& request);

struct ImportRequest {
  std::string torch_file = {};
  std::string model = {};   // a folder as Hugging Face's, with the parameters
  std::string output = {};  // the checkpoint that is made
  std::string names_file = {};
  ComputeType type = ComputeType::kFp32;
  std::optional<uint64_t> step = {};  // none: Adam's largest count
};

// Holds one tensor in memory at a time. A tensor of the model that the optimizer does not have is
// kept as it is: frozen, or a buffer. kBadInput: as adam_of() and open_import_model(), states of
// another shape than their parameter, states of what the model does not have, values of a trained
// parameter or of a state that are not finite, or that `type` cannot hold.
Status import_torch(const ImportRequest& request);

// One a line; those of an empty path are none.
Result<std::vector<std::string>> read_names(const std::string& path);

// Every parameter of the folder's model in the order in which torch has them, by its config.json;
// empty: it has none, or one of a model that is not known.
std::vector<std::string> model_order(const checkpoints::StoredFolder& folder);

// kBadInput: the tensor has values that are not finite, or that `kept_as` cannot hold. It is read
// once, a block at a time.
Status check_stored_values(const checkpoints::StoredFolder& folder,
                           const checkpoints::StoredTensor& tensor, ComputeType kept_as);

// The bytes of a file from `offset` on. kBadInput: they are not there.
Status read_exact(int fd, uint64_t offset, std::span<std::byte> bytes);

}  // namespace elixir
