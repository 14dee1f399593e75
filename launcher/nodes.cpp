#include "launcher/nodes.h"

#include "shm/shape.h"

namespace elixir::launcher {
namespace {

constexpr size_t kMaxIdBytes = 100;  // a job's name has room for 127, with the attempt

Status check_flags(const NodeFlags& flags, const Launch& launch) {
  const auto needs = [&flags](const char* flag, const char* what) {
    return error(Code::kInvalidArgument, "--nnodes {} needs {}: {}", flags.nodes, flag, what);
  };
  if (flags.nodes > 1) {
    if (!flags.node_rank) return needs("--node-rank", "which node this is, from 0 on");
    if (flags.master_address.empty()) return needs("--master-addr", "the address of node 0");
    if (!flags.master_port) return needs("--master-port", "a TCP port that is free on node 0");
    if (launch.max_restarts > 0) {
      return error(
          Code::kInvalidArgument,
          "--max-restarts {} works on one node only: with --nnodes {} nothing restarts the "
          "other nodes' ranks; let your scheduler start the job again",
          launch.max_restarts, flags.nodes);
    }
  }
  if (flags.node_rank.value_or(0) >= flags.nodes) {
    return error(Code::kInvalidArgument, "--node-rank {} of --nnodes {}: ranks of nodes end at {}",
                 *flags.node_rank, flags.nodes, flags.nodes - 1);
  }
  if (const uint64_t ranks = uint64_t{flags.nodes} * launch.ranks; ranks > shm::kMaxRanks) {
    return error(Code::kInvalidArgument,
                 "{} nodes with {} ranks each are {} ranks, and a job has at "
                 "most {}",
                 flags.nodes, launch.ranks, ranks, shm::kMaxRanks);
  }
  return Status();
}

}  // namespace

Status place_on_nodes(const NodeFlags& flags, Launch* launch) {
  ELIXIR_RETURN_IF_ERROR(check_flags(flags, *launch));
  launch->nodes = flags.nodes;
  launch->node_rank = flags.node_rank.value_or(0);
  if (!flags.master_address.empty()) launch->master_address = flags.master_address;
  launch->master_port = flags.master_port.value_or(0);
  if (flags.nodes > 1) {  // the same on every node, unlike an identity made here
    launch->id =
        fmt::format("nodes-{}:{}-{}", flags.master_address, launch->master_port, flags.job_id);
  } else if (!flags.job_id.empty()) {
    launch->id += "-" + flags.job_id;
  }
  if (launch->id.size() <= kMaxIdBytes) return Status();
  return error(Code::kInvalidArgument,
               "the job's name '{}' has {} bytes, and {} are possible: give a shorter --job-id, or "
               "a numeric --master-addr",
               launch->id, launch->id.size(), kMaxIdBytes);
}

}  // namespace elixir::launcher
