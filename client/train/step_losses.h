#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "client/device/device.h"

namespace elixir {

// Losses on their way from the device to the host, which nobody waits for. bring() under the
// engine's mutex.
class StepLosses {
 public:
  explicit StepLosses(Device& device) : device_(device) {}

  // The loss, one number on the device, in FP64; by operators of LibTorch's.
  static at::Tensor number(const at::Tensor& loss);
  // Enqueues a copy of the loss of `step`, which is a number(): where it will be, as soon as all
  // that is on Stream::kDownload now is done, until step + kKept.
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
