#pragma once

// The alignment that a launch requires of its pointers. No CUDA: the fakes in the client's tests
// require the same.

#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "base/norm_sum.h"

namespace elixir::kernels {

// For every array of elements: a thread loads and stores 16 bytes at a time.
inline constexpr size_t kArrayAlignBytes = 16;
// For a norm: it is added to word by word, so norms of several chunks can lie side by side.
inline constexpr size_t kNormAlignBytes = alignof(NormSum);

// A null array passes, because an array that the type does not use may be null.
inline void check_aligned(const void* array, const char* name,
                          size_t align_bytes = kArrayAlignBytes) {
  ELIXIR_CHECK(reinterpret_cast<uintptr_t>(array) % align_bytes == 0,
               "{} at {} is not a multiple of {} bytes", name, array, align_bytes);
}

inline void check_norm_pointers(const void* values, const void* result) {
  check_aligned(values, "values");
  check_aligned(result, "result", kNormAlignBytes);
}

}  // namespace elixir::kernels
