#pragma once

#include <cstddef>
#include <memory>

#include "base/norm_sum.h"
#include "base/status.h"
#include "client/cuda/cuda_result.h"
#include "client/device/device.h"
#include "optim_cpu/adam.h"

// CUDA's own names for the types behind cudaStream_t and cudaEvent_t.
struct CUstream_st;
struct CUevent_st;

namespace elixir {

using CudaStream = CUstream_st*;
using CudaEvent = CUevent_st*;

enum class CopyKind { kHostToDevice, kDeviceToHost, kDeviceToDevice };

// All functions of CUDA's runtime, of torch's allocator and streams, and of kernels/ that
// CudaDevice calls. Each makes one call and decides nothing. So tests can replace them with a fake,
// and CudaDevice compiles without CUDA.
class CudaDriver {
 public:
  virtual ~CudaDriver() = default;

  // ---- torch; these throw Error with its text: kResourceExhausted (no memory), kInternal ----

  // Starts torch's CUDA and makes the device the calling thread's current one.
  virtual void use_device(int index) = 0;
  // Sets the fraction of the device's memory that torch's allocator may hold.
  virtual void limit_memory(int index, double fraction) = 0;
  virtual void* allocate(size_t bytes) = 0;
  virtual void free(void* memory) = 0;
  virtual uint64_t peak_bytes(int index) = 0;  // the most that was allocated at one time
  virtual TorchStream pool_stream(int index) = 0;
  virtual TorchStream current_stream(int index) = 0;
  virtual CudaStream handle(const TorchStream& stream) = 0;
  // As Device::sum_gradients.
  virtual void sum_gradients(const TorchStream& stream, ComputeType type, const void* grads,
                             size_t numel, float* sums, bool begins) = 0;

  // ---- CUDA's runtime, on the current device ----

  virtual CudaResult memory_info(size_t* free_bytes, size_t* total_bytes) = 0;
  virtual CudaResult host_register(const void* host, size_t bytes) = 0;
  virtual CudaResult host_unregister(const void* host) = 0;
  virtual CudaResult host_allocate(void** host, size_t bytes) = 0;  // page-locked
  virtual CudaResult host_free(void* host) = 0;
  virtual CudaResult create_event(CudaEvent* event) = 0;
  virtual CudaResult create_timed_event(CudaEvent* event) = 0;
  virtual CudaResult destroy_event(CudaEvent event) = 0;
  virtual CudaResult record(CudaEvent event, CudaStream stream) = 0;
  virtual CudaResult wait(CudaStream stream, CudaEvent event) = 0;
  virtual CudaResult is_capturing(CudaStream stream, bool* capturing) = 0;
  virtual CudaResult query(CudaEvent event) = 0;  // kSuccess: done; kNotReady
  virtual CudaResult synchronize(CudaEvent event) = 0;
  // The time between two timed events. REQUIRES: both are done.
  virtual CudaResult elapsed(float* milliseconds, CudaEvent begin, CudaEvent end) = 0;
  virtual CudaResult synchronize_device() = 0;
  virtual CudaResult copy(void* to, const void* from, size_t bytes, CopyKind kind,
                          CudaStream stream) = 0;
  virtual CudaResult zero(void* device, size_t bytes, CudaStream stream) = 0;
  // Returns the error that the runtime keeps, and clears it (cudaGetLastError).
  virtual CudaResult take_error() = 0;
  virtual const char* error_text(CudaResult result) = 0;
  virtual const char* error_name(CudaResult result) = 0;

  // ---- kernels/ ----

  virtual Status update(const optim::UpdateSpan& span, const optim::AdamStep& step,
                        CudaStream stream) = 0;
  virtual Status squared_norm(ComputeType type, const void* values, size_t numel, NormSum* result,
                              CudaStream stream) = 0;
};

// The driver that calls CUDA. Only libelixir_cuda.so defines this function.
std::unique_ptr<CudaDriver> make_cuda_driver();

}  // namespace elixir
