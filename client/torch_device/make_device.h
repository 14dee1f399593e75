#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "client/device/paced_device.h"

namespace elixir {

// A device and where it hangs.
struct PlacedDevice {
  std::unique_ptr<Device> device;
  std::string name;      // "cpu", "cuda:0 (NVIDIA H100 80GB HBM3)"
  std::string gpu_uuid;  // "" on CPUs
  int numa_node = -1;    // whose memory is near; -1: unknown
};

// kCPU, or kCUDA with an index, or without one: the local_rank-th of the devices there are, counted
// around (several ranks may share one). Of `host` a CUDA device takes memory_limit_bytes alone.
// Throws elixir::Error: kUnavailable when there is no such device, with the cause and the remedy;
// kInvalidArgument for other devices, and for a link or operator_us with one of CUDA.
PlacedDevice make_device(c10::Device wanted, uint32_t local_rank, const HostDeviceOptions& host);

// "cpu", "cuda", "cuda:1". Throws kInvalidArgument for anything else.
c10::Device parse_device(const std::string& name);

// What Device::copies_at_once() of that device says, before there is one.
bool copies_at_once(c10::Device wanted, const HostDeviceOptions& host);

}  // namespace elixir
