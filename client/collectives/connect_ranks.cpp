#include "client/collectives/connect_ranks.h"

#include <chrono>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/throw_error.h"
#include "client/torch_device/cuda_library.h"
#include "client/torch_device/torch_stream.h"

namespace elixir {
namespace {

// torch's own, only a backstop: deaths are told of by elixird or PeerWatch, and DeviceWorks asks
// for failures and looks at the time.
constexpr std::chrono::minutes kNcclTimeout{30};

}  // namespace

ConnectedRanks connect_ranks(const LaunchEnvironment& environment, const PlacedDevice& device) {
  ConnectedRanks ranks;
  RendezvousOptions options;
  options.gpu_uuid = device.gpu_uuid;
  ranks.rendezvous = value_or_throw(Rendezvous::join(environment, options));
  CollectiveOptions collectives;
  collectives.device = torch_device(*device.device);
  if (collectives.device.is_cuda()) {
    CudaLibrary* const cuda = value_or_throw(load_cuda_library());
    collectives.data = value_or_throw(
        cuda->make_nccl(ranks.rendezvous->store(), static_cast<int>(environment.rank),
                        static_cast<int>(environment.world_size), kNcclTimeout));
  }
  ranks.group = value_or_throw(CollectiveGroup::create(*ranks.rendezvous, collectives));
  return ranks;
}

}  // namespace elixir
