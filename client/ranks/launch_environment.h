#pragma once

#include <cstdint>
#include <string>

namespace elixir {

// The place of this process among the ranks of its job, as its starter says it in the environment.
struct LaunchEnvironment {
  uint32_t rank = 0;
  uint32_t world_size = 1;
  uint32_t local_rank = 0;  // on this node
  uint32_t local_world_size = 1;
  std::string job;  // the same on all ranks of a job, different for every start
  // "torchrun", "slurm", "openmpi", "mvapich", "pals", "hydra", "pmi", "alone"
  std::string starter;

  // The address of rank 0, for a rendezvous; "" and 0 if nothing says it.
  std::string master_address;
  uint16_t master_port = 0;
  // The starter itself has a store at that address (torchrun; TORCHELASTIC_USE_AGENT_STORE).
  bool starter_hosts_store = false;

  // Which variables say that there are several ranks, and what to do if there are not. For messages
  // of who waits for others; "" for one rank.
  std::string ranks_said = {};

  std::string launch = {};  // the same for a start and its restarts; tells which elixird is its own

  // Behind a message: "; " and ranks_said.
  std::string and_why() const { return ranks_said.empty() ? "" : "; " + ranks_said; }
  bool one_node() const { return local_world_size == world_size; }
};

}  // namespace elixir
