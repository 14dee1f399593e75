#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace elixir {

// A cudaError_t, without CUDA's headers. Only the results that Elixir distinguishes have names.
enum class CudaResult : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kMemoryAllocation = 2,
  kUnloading = 4,
  kInsufficientDriver = 35,
  kDevicesUnavailable = 46,
  kNoDevice = 100,
  kNoKernelImage = 209,
  kEccUncorrectable = 214,
  kNotReady = 600,
  kIllegalAddress = 700,
  kHostMemoryAlreadyRegistered = 712,
  kLaunchFailure = 719,
  kNotPermitted = 800,
  kNotSupported = 801,
  kSystemNotReady = 802,
  kSystemDriverMismatch = 803,
};

// The remedy for the error: a sentence without its full stop.
std::string_view cuda_remedy(CudaResult result);

// Whether this process cannot use the device any more, because a kernel or the device failed.
bool cuda_context_is_lost(CudaResult result);

// "CUDA failed to WHAT: TEXT (NAME); REMEDY". `text` and `name` are CUDA's. The code is
// kResourceExhausted without memory, kUnavailable without a usable device or driver, else
// kInternal.
Status cuda_status(CudaResult result, std::string_view text, std::string_view name,
                   std::string_view what);

}  // namespace elixir
