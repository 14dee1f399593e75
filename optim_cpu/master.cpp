#include "optim_cpu/master.h"

#include <cstring>

#include "optim_cpu/formats.h"

namespace elixir::optim {

void load_master(ComputeType type, const float* values, size_t numel, void* param, void* master) {
  switch (type) {
    case ComputeType::kBf16:
      for (size_t i = 0; i < numel; ++i) {
        const SplitBf16 halves = split_bf16(values[i]);
        static_cast<uint16_t*>(param)[i] = halves.param;
        static_cast<uint16_t*>(master)[i] = halves.low;
      }
      return;
    case ComputeType::kFp16:
      for (size_t i = 0; i < numel; ++i) {
        static_cast<uint16_t*>(param)[i] = float_to_half(values[i]);
      }
      if (numel != 0) std::memcpy(master, values, numel * sizeof(float));
      return;
    case ComputeType::kFp32:
      if (numel != 0) std::memcpy(param, values, numel * sizeof(float));
      return;
  }
}

void read_master(ComputeType type, const void* param, const void* master, size_t numel,
                 float* values) {
  switch (type) {
    case ComputeType::kBf16:
      for (size_t i = 0; i < numel; ++i) {
        values[i] = join_bf16(static_cast<const uint16_t*>(param)[i],
                              static_cast<const uint16_t*>(master)[i]);
      }
      return;
    case ComputeType::kFp16:
      if (numel != 0) std::memcpy(values, master, numel * sizeof(float));
      return;
    case ComputeType::kFp32:
      if (numel != 0) std::memcpy(values, param, numel * sizeof(float));
      return;
  }
}

}  // namespace elixir::optim
