#pragma once

#include <cstdint>

#include "daemon/job.h"

namespace elixir::daemon {

// What elixird keeps in its own heap for a job beside the ranks' memory: the tracker's notes a
// chunk and rank, tasks and their progress, slices, parameters with their names. An upper bound
// within a factor of three; it counts when the job asks for its place, since nothing else bounds
// it.
uint64_t heap_bytes(const Job::Options& job, uint64_t slice_numel);

}  // namespace elixir::daemon
