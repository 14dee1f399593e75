#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "client/ranks/rank_environment.h"

namespace elixir::launcher {

// The flags for a job over several nodes, with one elixir-run per node.
struct NodeFlags {
  uint32_t nodes = 1;
  std::optional<uint32_t> node_rank;    // needed from two nodes on, as are the next two
  std::string master_address;           // of the node with rank 0
  std::optional<uint16_t> master_port;  // free there
  std::string job_id;                   // distinguishes launches at one address and port
};

// Writes the job's identity and this node's place in it into `launch`, whose ranks and max_restarts
// are set. The ranks of a node follow each other. With one node and no flags nothing changes.
// kInvalidArgument names the flag that is missing or wrong.
Status place_on_nodes(const NodeFlags& flags, Launch* launch);

}  // namespace elixir::launcher
