#include "client/collectives/connect_ranks.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/folder_names.h"
#include "base/throw_error.h"
#include "client/ranks/seconds_setting.h"
#include "client/torch_device/cuda_library.h"
#include "client/torch_device/torch_stream.h"

namespace elixir {
namespace {

// Gloo connects every rank with every other. Each connection needs a descriptor, on top of those
// that the process has open.
void require_descriptors(uint32_t ranks) {
  constexpr rlim_t kSpare = 64;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const std::optional<std::vector<std::string>> open = folder_names("/proc/self/fd");
  const rlim_t needed = (open ? open->size() : 0) + ranks + kSpare;
  if (needed <= limit.rlim_cur) return;
  if (needed <= limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    if (::setrlimit(RLIMIT_NOFILE, &limit) == 0) return;
  }
  throw Error(error(Code::kResourceExhausted,
                    "{} ranks need {} descriptors in each process, and {} are allowed: raise the "
                    "limit (ulimit -n, LimitNOFILE=)",
                    ranks, needed, limit.rlim_max));
}

}  // namespace

// elixird or PeerWatch reports deaths. DeviceWorks checks for failures and timeouts about once a
// second.
std::chrono::milliseconds nccl_timeout(double timeout_s) {
  constexpr double kBehindOwnS = 60;
  constexpr double kLongestS = std::chrono::duration<double>(kLongestNcclTimeout).count();
  const std::chrono::duration<double> limit(std::min(timeout_s + kBehindOwnS, kLongestS));
  return std::chrono::duration_cast<std::chrono::milliseconds>(limit);
}

ConnectedRanks connect_ranks(const LaunchEnvironment& environment, const PlacedDevice& device) {
  require_descriptors(environment.world_size);
  ConnectedRanks ranks;
  RendezvousOptions options;
  options.gpu_uuid = device.gpu_uuid;
  ranks.rendezvous = value_or_throw(Rendezvous::join(environment, options));
  CollectiveOptions collectives;
  collectives.device = torch_device(*device.device);
  if (collectives.device.is_cuda()) {
    CudaLibrary* const cuda = value_or_throw(load_cuda_library());
    collectives.timeout_s = value_or_throw(
        seconds_setting(0, "ELIXIR_COLLECTIVE_TIMEOUT_S", CollectiveGroup::kDefaultTimeoutSeconds));
    collectives.data = value_or_throw(cuda->make_nccl(
        ranks.rendezvous->store(), static_cast<int>(environment.rank),
        static_cast<int>(environment.world_size), nccl_timeout(collectives.timeout_s)));
  }
  ranks.group = value_or_throw(connect_group(*ranks.rendezvous, collectives));
  return ranks;
}

}  // namespace elixir
