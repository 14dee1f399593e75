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

  // Where rank 0 can be reached, for a rendezvous; "" and 0 when nothing says so.
  std::string master_address;
  uint16_t master_port = 0;
  // The starter itself has a store at that address (torchrun; TORCHELASTIC_USE_AGENT_STORE).
  bool starter_hosts_store = false;

  bool one_node() const { return local_world_size == world_size; }
};

// Reads the first complete set of: torchrun's RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE
// (elixir-run sets the same), Slurm's SLURM_PROCID, SLURM_LOCALID, SLURM_NTASKS,
// SLURM_STEP_TASKS_PER_NODE, Open MPI's OMPI_COMM_WORLD_*. Without any: one rank alone. ELIXIR_JOB
// names the job, else the starter's own identifiers do.
//
// The master address is MASTER_ADDR, else 127.0.0.1 on one node, else the first host of Slurm's
// node list, which is rank 0's. The port is MASTER_PORT, else, for Slurm and Open MPI, one of
// [kFirstDerivedPort, kFirstDerivedPort + kDerivedPorts) computed from the job's identifiers.
// kInvalidArgument for a set that contradicts itself.
inline constexpr uint16_t kFirstDerivedPort = 20000;  // below Linux's ephemeral ports, 32768 on
inline constexpr uint16_t kDerivedPorts = 10000;
Result<LaunchEnvironment> read_launch_environment();

}  // namespace elixir
