#pragma once

#include <nccl.h>

#include <cstddef>
#include <vector>

namespace fake_nccl {

size_t element_bytes(ncclDataType_t type);  // 0: unknown type
inline bool is_summed(ncclDataType_t type) {
  return type == ncclFloat16 || type == ncclBfloat16 || type == ncclFloat32;
}

// Sums in the order of ranks, in FP32, and rounds to the type once. `out` may be one of the
// sources. REQUIRES: is_summed(type).
//
// out[i] = sources[0][i] + sources[1][i] + ...
void sum_in_order(const std::vector<const std::byte*>& sources, std::byte* out, size_t count,
                  ncclDataType_t type);

}  // namespace fake_nccl
