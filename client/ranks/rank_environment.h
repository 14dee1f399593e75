#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace elixir {

// What the ranks of one attempt of one launch share.
struct Launch {
  std::string id;        // of the launch: the same for every attempt
  uint32_t attempt = 0;  // 0, then one more for each restart
  uint32_t max_restarts = 0;
  uint32_t ranks = 1;  // on this node, and on every other
  uint32_t nodes = 1;
  uint32_t node_rank = 0;
  std::string master_address = "127.0.0.1";
  uint16_t master_port = 0;
  std::string runtime_path;  // of elixird

  uint32_t first_rank() const { return node_rank * ranks; }
  uint32_t all_ranks() const { return nodes * ranks; }

  // What the ranks tell elixird they belong to. Each attempt is a job of its own, so that a rank
  // of the one before that is still dying cannot join it.
  std::string job() const { return id + "-" + std::to_string(attempt); }
};

// Unique on this machine as long as it runs.
std::string new_launch_id();

// A TCP port of 127.0.0.1 that nobody listens on now.
Result<uint16_t> free_port();

// "NAME=value" of one rank of this node (0 is its first): torchrun's variables, ELIXIR_JOB,
// ELIXIR_RUNTIME_DIR, and, unless the user has set them, OMP_NUM_THREADS (compute_threads()) and
// GOMP_SPINCOUNT (openmp_wait_setting()).
std::vector<std::string> rank_environment(const Launch& launch, uint32_t local_rank);

}  // namespace elixir
