#pragma once

#include "models/train_options.h"

namespace elixir {

// How torch is to run a training: deterministic operators, attention's kernel. Before CUDA is:
// cuBLAS reads its variable once.
void set_up_torch(const TrainOptions& options);

// For training on the CPU: malloc keeps what is freed, as CUDA's caching allocator does. Else it
// gives each large tensor back to the system, and all pages of the next one are faults: a fifth of
// a step (bench/RESULTS.md, peers). Where the environment says how malloc is to be, that stays.
void keep_freed_memory();

}  // namespace elixir
