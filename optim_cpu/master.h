#pragma once

// Moves FP32 masters in and out of the two places that hold them (adam.h): the 16-bit parameter and
// its completion. Thread-safe: functions on the caller's memory. Not tuned: used at start and for
// checkpoints.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/compute_type.h"

namespace elixir::optim {

// Stores `numel` masters. With BF16 the stored master obeys the tie rule of formats.h. With FP32
// `param` is the master and `master` is not touched.
void load_master(ComputeType type, const float* values, size_t numel, void* param, void* master);

// Reads the masters as load_master or adam_update left them. With FP32 `master` is not read.
void read_master(ComputeType type, const void* param, const void* master, size_t numel,
                 float* values);

// Call it after load_master with BF16 values. Adds the low halves that BF16 keeps beside them
// (split_bf16), in whatever type the masters are kept.
void complete_master(ComputeType type, const uint16_t* low, size_t numel, void* param,
                     void* master);

// Converts values to FP32 as files hold them; they need not be aligned. `type`, as safetensors
// names it, is one that is_value_type() knows: BF16, F16, F32, F64.
bool is_value_type(std::string_view type);
void read_values(std::string_view type, const std::byte* bytes, size_t numel, float* values);

}  // namespace elixir::optim
