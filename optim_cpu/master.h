#pragma once

// FP32 masters in and out of the two places that hold them (adam.h): the 16-bit parameter and what
// completes it. Thread-safe: functions on the caller's memory. Not tuned: start and checkpoints.

#include <cstddef>

#include "base/compute_type.h"

namespace elixir::optim {

// Stores `numel` masters. With BF16 the master that is kept obeys the tie rule of formats.h, and
// with FP32 `param` is the master and `master` is not touched.
void load_master(ComputeType type, const float* values, size_t numel, void* param, void* master);

// The masters as load_master or adam_update left them. With FP32 `master` is not read.
void read_master(ComputeType type, const void* param, const void* master, size_t numel,
                 float* values);

}  // namespace elixir::optim
