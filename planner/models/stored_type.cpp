#include "planner/models/stored_type.h"

#include <map>

#include "checkpoint/stored_folder.h"
#include "planner/models/config_json.h"

namespace elixir::planner {
namespace {

std::optional<ComputeType> type_of_tensors(const std::string& folder) {
  const Result<checkpoints::StoredFolder> stored = checkpoints::open_stored_folder(folder);
  if (!stored.ok()) return std::nullopt;
  std::map<std::string_view, uint64_t> numel;
  for (const checkpoints::StoredTensor& tensor : stored->model) {
    if (checkpoints::is_known_buffer(tensor)) continue;
    numel[tensor.dtype->name] += tensor.numel();
  }
  std::optional<ComputeType> most;
  uint64_t most_numel = 0;
  for (const ComputeType type : {ComputeType::kBf16, ComputeType::kFp16, ComputeType::kFp32}) {
    const uint64_t own = numel[checkpoints::dtype_of(type).name];
    if (own <= most_numel) continue;
    most = type;
    most_numel = own;
  }
  return most;
}

}  // namespace

std::optional<ComputeType> stored_type(const std::string& config_path) {
  const Result<std::string> text = read_config_file(config_path);
  if (text.ok()) {
    if (const auto named = type_in_config_json(*text)) return named;
  }
  const size_t slash = config_path.rfind('/');
  return type_of_tensors(slash == std::string::npos ? "." : config_path.substr(0, slash + 1));
}

}  // namespace elixir::planner
