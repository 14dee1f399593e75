#pragma once

#include <cstdint>
#include <string>

namespace elixir {

// The place of this process among the ranks of its job, as given by its starter in the environment.
struct LaunchEnvironment {
  uint32_t rank = 0;
  uint32_t world_size = 1;
  uint32_t local_rank = 0;  // on this node
  uint32_t local_world_size = 1;
  std::string job;  // equal on all ranks of a job, different for every start
  // "torchrun", "slurm", "openmpi", "mvapich", "pals", "hydra", "pmi", "alone"
  std::string starter;

  // The address of rank 0, for a rendezvous; "" and 0 if unknown.
  std::string master_address;
  uint16_t master_port = 0;
  // The starter itself has a store at that address (torchrun; TORCHELASTIC_USE_AGENT_STORE).
  bool starter_hosts_store = false;

  // Names the variables that say that there are several ranks, and says what to do if there are
  // not. It is for messages about waits for other ranks; "" for one rank.
  std::string ranks_said = {};

  std::string launch = {};  // equal for a start and its restarts; identifies the launch's elixird

  // The end of a message: "; " and ranks_said.
  std::string and_why() const { return ranks_said.empty() ? "" : "; " + ranks_said; }
  bool one_node() const { return local_world_size == world_size; }
};

}  // namespace elixir
