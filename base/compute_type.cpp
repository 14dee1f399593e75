#include "base/compute_type.h"

namespace elixir {

const char* compute_type_name(ComputeType type) {
  switch (type) {
    case ComputeType::kBf16:
      return "bf16";
    case ComputeType::kFp16:
      return "fp16";
    case ComputeType::kFp32:
      return "fp32";
  }
  return "unknown";
}

Result<ComputeType> parse_compute_type(std::string_view name) {
  for (ComputeType type : {ComputeType::kBf16, ComputeType::kFp16, ComputeType::kFp32}) {
    if (name == compute_type_name(type)) return type;
  }
  return error(Code::kInvalidArgument, "'{}' is not a compute type; use bf16, fp16 or fp32", name);
}

}  // namespace elixir
