#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace elixir {

// The settings that the ranks of one attempt of one launch share.
struct Launch {
  std::string id;        // the launch's: equal for every attempt
  uint32_t attempt = 0;  // 0, then one more for each restart
  uint32_t max_restarts = 0;
  uint32_t ranks = 1;  // per node, equal on every node
  uint32_t nodes = 1;
  uint32_t node_rank = 0;
  std::string master_address = "127.0.0.1";
  uint16_t master_port = 0;
  std::string runtime_path;  // elixird's runtime folder

  uint32_t first_rank() const { return node_rank * ranks; }
  uint32_t all_ranks() const { return nodes * ranks; }

  // The name of the job, which the ranks give to elixird. Each attempt is a job of its own, so a
  // rank of the previous attempt that is still dying cannot join it.
  std::string job() const { return id + "-" + std::to_string(attempt); }
};

// Unique on this machine until its next boot.
std::string new_launch_id();

// A TCP port of 127.0.0.1 that nobody listens on now.
Result<uint16_t> free_port();

// "NAME=value" for one rank of this node (0 is its first): torchrun's variables, ELIXIR_JOB,
// ELIXIR_RUNTIME_DIR, and, unless the user has set them, OMP_NUM_THREADS (compute_threads()),
// PYTHONUNBUFFERED and GOMP_SPINCOUNT (openmp_wait_setting()).
std::vector<std::string> rank_environment(const Launch& launch, uint32_t local_rank);

}  // namespace elixir
