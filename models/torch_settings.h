#pragma once

#include "models/train_options.h"

namespace elixir {

// Sets up torch for a training: deterministic operators, attention's kernel. Call it before CUDA
// starts, because cuBLAS reads its environment variable only once.
void set_up_torch(const TrainOptions& options);

// For training on the CPU: makes malloc keep freed memory, as CUDA's caching allocator does.
// Otherwise malloc returns each large tensor to the system, and every page of the next one is a
// page fault. This costs a fifth of a step (bench/RESULTS.md, peers). Settings of malloc in the
// environment take precedence.
void keep_freed_memory();

}  // namespace elixir
