#pragma once

// Exports a checkpoint's optimizer states to a file that torch.load() reads, and imports them from
// such a file.

#include <optional>
#include <string>
#include <vector>

#include "base/compute_type.h"
#include "base/status.h"
#include "checkpoint/stored_folder.h"

namespace elixir {

// How many elements are in memory at a time.
inline constexpr uint64_t kConvertBlockNumel = uint64_t{1} << 20;

struct ExportRequest {
  std::string checkpoint = {};
  std::string torch_file = {};    // holds torch.optim.AdamW.state_dict() and "param_names"
  std::string masters_file = {};  // a safetensors file of FP32 masters; "": none
  std::string names_file = {};    // the order of the parameters; "": the model's order
};

// Reads and verifies the whole checkpoint first. kBadInput: the checkpoint is not valid, has no
// states, or has values that are not finite. kInvalidArgument: the names are not the checkpoint's;
// or a file exists already or cannot be created.
Status export_torch(const ExportRequest& request);

struct ImportRequest {
  std::string torch_file = {};
  std::string model = {};   // a folder in Hugging Face's form, with the parameters
  std::string output = {};  // the checkpoint that is made
  std::string names_file = {};
  ComputeType type = ComputeType::kFp32;
  std::optional<uint64_t> step = {};  // none: the largest of Adam's counts
};

// Holds one tensor in memory at a time. If the optimizer has no states for a tensor of the model (a
// frozen parameter or a buffer), the tensor is kept unchanged.
//
// kBadInput: errors of adam_of() and open_import_model(); states whose shape is not their
// parameter's; states of a parameter that the model does not have. Also if values of a trained
// parameter or a state are not finite, or `type` cannot hold them.
Status import_torch(const ImportRequest& request);

// Reads parameter names, one per line. An empty path gives no names.
Result<std::vector<std::string>> read_names(const std::string& path);

// The names of all parameters of the folder's model, in torch's order, from its config.json. Empty:
// there is no config.json, or its model is not known.
std::vector<std::string> model_order(const checkpoints::StoredFolder& folder);

// kBadInput: the tensor has values that are not finite, or that `kept_as` cannot hold. It is read
// once, a block at a time.
Status check_stored_values(const checkpoints::StoredFolder& folder,
                           const checkpoints::StoredTensor& tensor, ComputeType kept_as);

// Reads `bytes` of a file from `offset` on. kBadInput: the file is too short.
Status read_exact(int fd, uint64_t offset, std::span<std::byte> bytes);

}  // namespace elixir
