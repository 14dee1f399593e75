#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "client/device/device.h"

namespace elixir {

// Brings losses from the device to the host, and nobody waits for them. Call bring() under the
// engine's mutex.
class StepLosses {
 public:
  explicit StepLosses(Device& device) : device_(device) {}

  // The loss as one FP64 number on the device, by LibTorch's operators.
  static at::Tensor number(const at::Tensor& loss);
  // Enqueues a copy of the loss of `step`, which is a number(). Returns its place on the host. The
  // loss is there once the current work on Stream::kDownload is done. It stays there until step +
  // kKept.
  const double* bring(uint32_t step, const at::Tensor& loss);

 private:
  static constexpr uint32_t kKept = 4;  // elixird is at most two steps behind

  Device& device_;
  // By step % kKept; made for the first loss.
  std::byte* on_device_ = nullptr;
  double* on_host_ = nullptr;
  DeviceEvent computed_;
};

}  // namespace elixir
