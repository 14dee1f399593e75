#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "client/device/device.h"

namespace elixir::probe {

// The rate of a matrix product with `tokens` rows, in floating-point operations per second.
struct TimedProduct {
  double tokens = 0;
  double flops = 0;
};

struct MatrixRate {
  double tflops = 0;       // the limit for products of any number of tokens
  double half_tokens = 0;  // number of tokens that reaches half of tflops
};

// Fits rate(t) = tflops * t / (t + half_tokens) by least squares of relative errors. half_tokens is
// at least 0. REQUIRES: two products or more, with different numbers of tokens.
MatrixRate fit_matrix_rate(std::span<const TimedProduct> products);

struct DeviceRateOptions {
  uint64_t numel = uint64_t{16} << 20;  // BF16 parameters to update
  int64_t width = 2048;                 // rows and columns of the square matrix
  std::vector<int64_t> tokens = {64, 256, 1024};
  int rounds = 5;  // the best counts, because other work only lowers a rate
};

// Runs Adam in BF16 by Device::update on all devices at the same time, with one thread per device.
// A single device uses the calling thread. Returns the sum over the devices, in 1e9 parameters per
// second. Throws Error.
double measure_device_updates(std::span<Device* const> devices, const DeviceRateOptions& options);

// Measures torch's matrix product, enqueued by the calling thread.
std::vector<TimedProduct> measure_products(Device& device, ComputeType type,
                                           const DeviceRateOptions& options);

}  // namespace elixir::probe
