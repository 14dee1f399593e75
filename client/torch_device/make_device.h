#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>

#include "client/device/paced_device.h"

namespace elixir {

// A device and its place on the node.
struct PlacedDevice {
  std::unique_ptr<Device> device;
  std::string name;      // "cpu", "cuda:0 (NVIDIA H100 80GB HBM3)"
  std::string gpu_uuid;  // "" on CPUs
  int numa_node = -1;    // the nearest one; -1: unknown
};

// `wanted` is kCPU, or kCUDA with or without an index. Without one, the index is local_rank modulo
// the number of devices, so several ranks may share a device. A CUDA device uses only
// memory_limit_bytes from `host`. Throws elixir::Error: kUnavailable when there is no such device,
// with the cause and the remedy; kInvalidArgument for other devices, and for a link or operator_us
// with a CUDA device.
PlacedDevice make_device(c10::Device wanted, uint32_t local_rank, const HostDeviceOptions& host);

// "cpu", "cuda", "cuda:1". Throws kInvalidArgument for anything else.
c10::Device parse_device(const std::string& name);

// The value of Device::copies_at_once() for the device that make_device would return.
bool copies_at_once(c10::Device wanted, const HostDeviceOptions& host);

}  // namespace elixir
