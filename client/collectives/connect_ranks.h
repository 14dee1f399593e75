#pragma once

#include <chrono>
#include <memory>

#include "client/collectives/connect_group.h"
#include "client/collectives/rendezvous.h"
#include "client/ranks/launch_environment.h"
#include "client/torch_device/make_device.h"

namespace elixir {

// The connected ranks of a job. The group ends before the rendezvous.
struct ConnectedRanks {
  std::unique_ptr<Rendezvous> rendezvous;
  std::unique_ptr<CollectiveGroup> group;
};

// torch's own limit for an NCCL collective in a group whose limit is timeout_s. It is a backstop,
// so it is longer, but at most kLongestNcclTimeout.
inline constexpr std::chrono::hours kLongestNcclTimeout{24 * 365};
std::chrono::milliseconds nccl_timeout(double timeout_s);

// All ranks call this. Blocks go through NCCL if the device is a GPU, else through Gloo. Throws the
// errors of Rendezvous::join and connect_group as elixir::Error, and kResourceExhausted if the
// process may not open enough descriptors.
ConnectedRanks connect_ranks(const LaunchEnvironment& environment, const PlacedDevice& device);

}  // namespace elixir
