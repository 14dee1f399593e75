#include "client/torch_device/make_device.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "base/throw_error.h"
#include "client/torch_device/cuda_library.h"

namespace elixir {

PlacedDevice make_device(c10::Device wanted, uint32_t local_rank, const HostDeviceOptions& host) {
  if (wanted.is_cpu() && host.paced()) return {std::make_unique<PacedDevice>(host), "cpu", "", -1};
  if (wanted.is_cpu())
    return {std::make_unique<HostDevice>(host.memory_limit_bytes), "cpu", "", -1};
  if (!wanted.is_cuda()) {
    throw Error(
        error(Code::kInvalidArgument, "cannot train on '{}': use cpu or cuda", wanted.str()));
  }
  if (host.paced()) {
    throw Error(error(Code::kInvalidArgument,
                      "a link's speed (--link-gb-s) and an operator's time are emulated on the CPU "
                      "alone, and the device is '{}': leave them out, or use cpu",
                      wanted.str()));
  }
  CudaLibrary* const cuda = value_or_throw(load_cuda_library());
  const CudaDevices& found = cuda->devices();
  throw_if_error(found.why_none);
  const auto count = static_cast<uint32_t>(found.devices.size());
  const uint32_t index =
      wanted.has_index() ? static_cast<uint32_t>(wanted.index()) : local_rank % count;
  if (index >= count) {
    throw Error(error(Code::kUnavailable, "cuda:{} does not exist: this node has {} CUDA device(s)",
                      index, count));
  }
  const CudaDeviceInfo& info = found.devices[index];
  return {value_or_throw(cuda->make_device(static_cast<int>(index), host.memory_limit_bytes)),
          fmt::format("cuda:{} ({})", index, info.name), info.uuid, info.numa_node};
}

c10::Device parse_device(const std::string& name) {
  try {
    const c10::Device device(name);
    if (device.is_cpu() || device.is_cuda()) return device;
  } catch (const c10::Error&) {  // told below
  }
  throw Error(error(Code::kInvalidArgument,
                    "cannot train on the device '{}': use cpu, cuda, or cuda:INDEX", name));
}

bool copies_at_once(c10::Device wanted, const HostDeviceOptions& host) {
  return wanted.is_cpu() && !host.link;
}

}  // namespace elixir
