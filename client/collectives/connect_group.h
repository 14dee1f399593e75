#pragma once

// A CollectiveGroup of processes, over NCCL and Gloo. Blocks of parameters and gradients go through
// NCCL's communicator if the options have one, otherwise through Gloo's connections. Small values
// of the host always go through Gloo's connections.
//
// The collectives over Gloo's connections are written here, on its sends and receives. The
// reduce-scatter of c10d for Gloo is an all-reduce of a copy, and its all-gather gathers into a
// copy. None of its collectives can be interrupted. The collectives here send each shard once,
// straight from and into the block. They sum in FP32 in rank order, so every rank computes what the
// host exchange would. When a rank has died, they end on all other ranks, and the error names it.

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>

#include "base/status.h"
#include "client/collectives/rendezvous.h"
#include "client/exchange/collective_group.h"

namespace c10d {
class Backend;
}

namespace elixir {

struct CollectiveOptions {
  CollectiveOptions();
  CollectiveOptions(const CollectiveOptions&);
  CollectiveOptions& operator=(const CollectiveOptions&);
  ~CollectiveOptions();  // c10d::Backend is only declared here

  // NCCL's communicator of the same ranks, for blocks on `device`. Null: blocks lie on the host.
  c10::intrusive_ptr<c10d::Backend> data;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  // How long a rank may wait for another that is alive (it may be evaluating or saving). 0: the
  // environment variable ELIXIR_COLLECTIVE_TIMEOUT_S, else CollectiveGroup::kDefaultTimeoutSeconds.
  double timeout_s = 0;
};

// Connects every rank with every other. All ranks call it. The rendezvous must outlive the group.
// Errors of the group's functions name the rank that died or did not join in time.
Result<std::unique_ptr<CollectiveGroup>> connect_group(const Rendezvous& rendezvous,
                                                       const CollectiveOptions& options = {});

}  // namespace elixir
