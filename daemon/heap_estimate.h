#pragma once

#include <cstdint>

#include "daemon/job.h"

namespace elixir::daemon {

// The bytes that elixird keeps in its own heap for a job, beside the ranks' memory. They are the
// tracker's notes per chunk and rank, tasks and their progress, slices, and parameters with their
// names. The result is an upper bound within a factor of three. It counts when the job asks for its
// place, since nothing else bounds this memory.
uint64_t heap_bytes(const Job::Options& job, uint64_t slice_numel);

}  // namespace elixir::daemon
