#pragma once

// FP32 masters in and out of the two places that hold them (adam.h): the 16-bit parameter and what
// completes it. Thread-safe: functions on the caller's memory. Not tuned: start and checkpoints.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/compute_type.h"

namespace elixir::optim {

// Stores `numel` masters. With BF16 the master that is kept obeys the tie rule of formats.h, and
// with FP32 `param` is the master and `master` is not touched.
void load_master(ComputeType type, const float* values, size_t numel, void* param, void* master);

// The masters as load_master or adam_update left them. With FP32 `master` is not read.
void read_master(ComputeType type, const void* param, const void* master, size_t numel,
                 float* values);

// After load_master with BF16 values: adds the low halves that BF16 keeps beside them (split_bf16),
// in whatever type the masters are kept.
void complete_master(ComputeType type, const uint16_t* low, size_t numel, void* param,
                     void* master);

// FP32 of values as files hold them, which need not be aligned. `type`, as safetensors names it, is
// one that is_value_type() knows: BF16, F16, F32, F64.
bool is_value_type(std::string_view type);
void read_values(std::string_view type, const std::byte* bytes, size_t numel, float* values);

}  // namespace elixir::optim
