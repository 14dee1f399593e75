#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace elixir {

// Who this process is among the ranks of its job, as its starter says it in the environment.
struct LaunchEnvironment {
  uint32_t rank = 0;
  uint32_t world_size = 1;
  uint32_t local_rank = 0;  // on this node
  uint32_t local_world_size = 1;
  std::string job;      // the same on all ranks of a job, different for every start
  std::string starter;  // "torchrun", "slurm", "openmpi" or "alone"
};

// Reads the first complete set of: torchrun's RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE
// (elixir-run sets the same), Slurm's SLURM_PROCID, SLURM_LOCALID, SLURM_NTASKS,
// SLURM_NTASKS_PER_NODE, Open MPI's OMPI_COMM_WORLD_*. Without any: one rank alone. ELIXIR_JOB
// names the job, else the starter's own identifiers do. kInvalidArgument for a set that contradicts
// itself, and for a Slurm step on several nodes.
Result<LaunchEnvironment> read_launch_environment();

}  // namespace elixir
