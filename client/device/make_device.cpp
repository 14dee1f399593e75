#include "client/device/make_device.h"

#include <fmt/format.h>

#include "client/device/cuda_library.h"
#include "client/device/host_device.h"
#include "client/error.h"

namespace elixir {

PlacedDevice make_device(c10::Device wanted, uint32_t local_rank, uint64_t memory_limit_bytes) {
  if (wanted.is_cpu()) return {std::make_unique<HostDevice>(memory_limit_bytes), "cpu", "", -1};
  if (!wanted.is_cuda()) {
    throw Error(
        error(Code::kInvalidArgument, "cannot train on '{}': use cpu or cuda", wanted.str()));
  }
  CudaLibrary* const cuda = value_or_throw(load_cuda_library());
  const CudaDevices& found = cuda->devices();
  throw_if_error(found.why_none);
  const auto count = static_cast<uint32_t>(found.devices.size());
  const uint32_t index =
      wanted.has_index() ? static_cast<uint32_t>(wanted.index()) : local_rank % count;
  if (index >= count) {
    throw Error(error(Code::kUnavailable, "there is no cuda:{}: this node has {} CUDA device(s)",
                      index, count));
  }
  const CudaDeviceInfo& info = found.devices[index];
  return {value_or_throw(cuda->make_device({static_cast<int>(index), memory_limit_bytes})),
          fmt::format("cuda:{} ({})", index, info.name), info.uuid, info.numa_node};
}

}  // namespace elixir
