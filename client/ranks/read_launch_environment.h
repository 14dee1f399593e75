#pragma once

#include <cstdint>

#include "base/status.h"
#include "client/ranks/launch_environment.h"

namespace elixir {

// Reads the first of: torchrun's RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE (elixir-run sets
// the same), Open MPI's OMPI_COMM_WORLD_*, MVAPICH's MV2_COMM_WORLD_*, Cray PALS' PALS_* and
// PMI_SIZE, Hydra's (MPICH, Intel MPI) PMI_* and MPI_LOCAL*, Slurm's SLURM_PROCID, SLURM_LOCALID,
// SLURM_NTASKS, SLURM_STEP_TASKS_PER_NODE, any other PMI starter's PMI_*. Without any: one rank
// alone. ELIXIR_JOB names the job, else the starter's own identifiers do.
//
// The master address is MASTER_ADDR, else 127.0.0.1 on one node, else the first host of Slurm's
// node list, which is rank 0's. The port is MASTER_PORT, else, for Slurm, Open MPI and PALS, one of
// [kFirstDerivedPort, kFirstDerivedPort + kDerivedPorts) computed from the job's identifiers.
// kInvalidArgument for variables that contradict each other, and for a starter of several ranks
// that does not say which rank this is, of how many, or which one on its node. So no rank runs
// alone without knowing it.
inline constexpr uint16_t kFirstDerivedPort = 20000;  // below Linux's ephemeral ports, 32768 on
inline constexpr uint16_t kDerivedPorts = 10000;
Result<LaunchEnvironment> read_launch_environment();

}  // namespace elixir
