#pragma once

#include <cstdint>

#include "base/status.h"
#include "client/ranks/launch_environment.h"

namespace elixir {

// Reads the variables of the first starter in this list that has set its own:
//   torchrun (elixir-run sets the same): RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE
//   Open MPI: OMPI_COMM_WORLD_*
//   MVAPICH: MV2_COMM_WORLD_*
//   Cray PALS: PALS_* and PMI_SIZE
//   Hydra (MPICH, Intel MPI): PMI_* and MPI_LOCAL*
//   Slurm: SLURM_PROCID, SLURM_LOCALID, SLURM_NTASKS, SLURM_STEP_TASKS_PER_NODE
//   any other PMI starter: PMI_*
// Without any, this is one rank alone. ELIXIR_JOB names the job, or else the starter's own
// identifiers do.
//
// The master address is MASTER_ADDR. Without it, it is 127.0.0.1 on one node, or else the first
// host of Slurm's node list, which is rank 0's. The port is MASTER_PORT. Without it, for Slurm,
// Open MPI and PALS, it is one of [kFirstDerivedPort, kFirstDerivedPort + kDerivedPorts), computed
// from the job's identifiers.
//
// Returns kInvalidArgument for variables that contradict each other. It does so, too, if a starter
// of several ranks does not say which rank this is, of how many, or which one on its node. So no
// rank runs alone by mistake.
inline constexpr uint16_t kFirstDerivedPort = 20000;  // below Linux's ephemeral ports, 32768 on
inline constexpr uint16_t kDerivedPorts = 10000;
Result<LaunchEnvironment> read_launch_environment();

}  // namespace elixir
