#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "client/device/device.h"

namespace elixir {

// Losses on their way from the device to the host, which nobody waits for. Owned by the thread that
// steps.
class StepLosses {
 public:
  explicit StepLosses(Device& device) : device_(device) {}

  // Enqueues a copy of the loss of `step`, one number on the device: where it will be, as soon as
  // all that is on Stream::kDownload now is done, until step + kKept.
  const double* bring(uint32_t step, const at::Tensor& loss);

 private:
  static constexpr uint32_t kKept = 4;  // elixird is at most two steps behind

  Device& device_;
  // By step % kKept; made at the first one.
  std::byte* on_device_ = nullptr;
  double* on_host_ = nullptr;
  DeviceEvent computed_;
};

}  // namespace elixir
