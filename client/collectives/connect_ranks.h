#pragma once

#include <chrono>
#include <memory>

#include "client/collectives/connect_group.h"
#include "client/collectives/rendezvous.h"
#include "client/ranks/launch_environment.h"
#include "client/torch_device/make_device.h"

namespace elixir {

// The ranks of a job, connected. The group ends first.
struct ConnectedRanks {
  std::unique_ptr<Rendezvous> rendezvous;
  std::unique_ptr<CollectiveGroup> group;
};

// torch's own limit for a collective of NCCL, where the group's is timeout_s: a backstop, so it is
// longer, and at most kLongestNcclTimeout.
inline constexpr std::chrono::hours kLongestNcclTimeout{24 * 365};
std::chrono::milliseconds nccl_timeout(double timeout_s);

// All ranks. Blocks go through NCCL where the device is a GPU, else through Gloo. Throws
// elixir::Error as Rendezvous::join and connect_group say.
ConnectedRanks connect_ranks(const LaunchEnvironment& environment, const PlacedDevice& device);

}  // namespace elixir
