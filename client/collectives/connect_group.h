#pragma once

// A CollectiveGroup of processes, over NCCL and Gloo. Blocks of parameters and gradients go through
// NCCL's communicator, where one is given, else through Gloo's connections; small values of the
// host always through Gloo's.
//
// Over Gloo's connections the collectives are written here, on its sends and receives: c10d's own
// reduce-scatter for Gloo is an all-reduce of a copy, its all-gather gathers into a copy, and none
// of its collectives can be broken off. These send each shard once, straight from and into the
// block; they sum in FP32 in the order of ranks, so that every rank computes what the host exchange
// would; and when a rank has died they end, with its name, on all others.

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

  // NCCL's communicator of the same ranks, for blocks on `device`. None: blocks lie on the host.
  c10::intrusive_ptr<c10d::Backend> data;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  // How long a rank may wait for another that is alive: it may evaluate or save meanwhile. 0: the
  // environment variable ELIXIR_COLLECTIVE_TIMEOUT_S, else CollectiveGroup::kDefaultTimeoutSeconds.
  double timeout_s = 0;
};

// Connects every rank with every other. All ranks; the rendezvous outlives the group. What its
// functions throw names the rank that died or did not join in time.
Result<std::unique_ptr<CollectiveGroup>> connect_group(const Rendezvous& rendezvous,
                                                       const CollectiveOptions& options = {});

}  // namespace elixir
