#pragma once

// Converts Elixir's devices and streams to LibTorch's.

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "client/device/device.h"

namespace elixir {

inline c10::Device torch_device(const Device& device) {
  const int index = device.cuda_index();
  if (index < 0) return c10::Device(c10::DeviceType::CPU);
  return c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index));
}

inline c10::Stream torch_stream(const TorchStream& packed) {
  return c10::Stream::unpack3(packed.id, static_cast<c10::DeviceIndex>(packed.device_index),
                              static_cast<c10::DeviceType>(packed.device_type));
}

}  // namespace elixir
