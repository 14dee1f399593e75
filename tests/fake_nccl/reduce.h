#pragma once

#include <nccl.h>

#include <cstddef>
#include <vector>

namespace fake_nccl {

size_t element_bytes(ncclDataType_t type);  // 0: a type that the fake does not know

// out[i] = the reduction of sources[0][i], sources[1][i], ... in this order, of ranks: floats of 16
// and 32 bits in FP32, doubles in FP64, integers in 64 bits; rounded to the type once. `out` may be
// one of the sources. False: a type or operation that the fake does not know.
bool reduce_in_order(const std::vector<const std::byte*>& sources, std::byte* out, size_t count,
                     ncclDataType_t type, ncclRedOp_t op);

}  // namespace fake_nccl
