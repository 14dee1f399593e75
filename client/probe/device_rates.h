#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "client/device/device.h"

namespace elixir::probe {

// How many floating-point operations a second a matrix product of so many rows reached.
struct TimedProduct {
  double tokens = 0;
  double flops = 0;
};

struct MatrixRate {
  double tflops = 0;       // that products of any number of tokens stay below
  double half_tokens = 0;  // at which half of it is reached
};

// tflops and half_tokens of rate(t) = tflops * t / (t + half_tokens) by least squares of relative
// errors; half_tokens is at least 0. REQUIRES: two products or more, of different tokens.
MatrixRate fit_matrix_rate(std::span<const TimedProduct> products);

struct DeviceRateOptions {
  uint64_t numel = uint64_t{16} << 20;  // BF16 parameters to update
  int64_t width = 2048;                 // of the square matrix
  std::vector<int64_t> tokens = {64, 256, 1024};
  int rounds = 5;  // the best counts: what else runs only takes away
};

// Adam in BF16 by Device::update on memory of each device at the same time, a thread each; with
// one, by the calling thread. 1e9 parameters a second of all together. Throws Error.
double measure_device_updates(std::span<Device* const> devices, const DeviceRateOptions& options);

// torch's matrix product, enqueued by the calling thread.
std::vector<TimedProduct> measure_products(Device& device, ComputeType type,
                                           const DeviceRateOptions& options);

}  // namespace elixir::probe
