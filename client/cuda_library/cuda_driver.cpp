#include "client/cuda/cuda_driver.h"

#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include "kernels/kernels.h"

namespace elixir {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

static_assert(static_cast<int>(CudaResult::kInvalidValue) == cudaErrorInvalidValue);
static_assert(static_cast<int>(CudaResult::kMemoryAllocation) == cudaErrorMemoryAllocation);
static_assert(static_cast<int>(CudaResult::kUnloading) == cudaErrorCudartUnloading);
static_assert(static_cast<int>(CudaResult::kInsufficientDriver) == cudaErrorInsufficientDriver);
static_assert(static_cast<int>(CudaResult::kDevicesUnavailable) == cudaErrorDevicesUnavailable);
static_assert(static_cast<int>(CudaResult::kNoDevice) == cudaErrorNoDevice);
static_assert(static_cast<int>(CudaResult::kNoKernelImage) == cudaErrorNoKernelImageForDevice);
static_assert(static_cast<int>(CudaResult::kEccUncorrectable) == cudaErrorECCUncorrectable);
static_assert(static_cast<int>(CudaResult::kNotReady) == cudaErrorNotReady);
static_assert(static_cast<int>(CudaResult::kIllegalAddress) == cudaErrorIllegalAddress);
static_assert(static_cast<int>(CudaResult::kHostMemoryAlreadyRegistered) ==
              cudaErrorHostMemoryAlreadyRegistered);
static_assert(static_cast<int>(CudaResult::kLaunchFailure) == cudaErrorLaunchFailure);
static_assert(static_cast<int>(CudaResult::kNotPermitted) == cudaErrorNotPermitted);
static_assert(static_cast<int>(CudaResult::kNotSupported) == cudaErrorNotSupported);
static_assert(static_cast<int>(CudaResult::kSystemNotReady) == cudaErrorSystemNotReady);
static_assert(static_cast<int>(CudaResult::kSystemDriverMismatch) == cudaErrorSystemDriverMismatch);

CudaResult result_of(cudaError_t error) { return static_cast<CudaResult>(error); }

// The runtime takes host memory that it will not write as void*, too.
void* mutable_pointer(const void* pointer) { return const_cast<void*>(pointer); }

cudaMemcpyKind kind_of(CopyKind kind) {
  switch (kind) {
    case CopyKind::kHostToDevice:
      return cudaMemcpyHostToDevice;
    case CopyKind::kDeviceToHost:
      return cudaMemcpyDeviceToHost;
    case CopyKind::kDeviceToDevice:
      return cudaMemcpyDeviceToDevice;
  }
  return cudaMemcpyDefault;
}

class RealCudaDriver final : public CudaDriver {
 public:
  void use_device(int index) override {
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    c10::cuda::set_device(static_cast<c10::DeviceIndex>(index), /*force=*/true);
  }
  void limit_memory(int index, double fraction) override {
    allocator::setMemoryFraction(fraction, static_cast<c10::DeviceIndex>(index));
  }
  void* allocate(size_t bytes) override { return allocator::raw_alloc(bytes); }
  void free(void* memory) override { allocator::raw_delete(memory); }
  uint64_t peak_bytes(int index) override {
    constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto stats = allocator::getDeviceStats(static_cast<c10::DeviceIndex>(index));
    return static_cast<uint64_t>(stats.allocated_bytes[kAll].peak);
  }
  c10::Stream pool_stream(int index) override {
    return c10::cuda::getStreamFromPool(/*isHighPriority=*/false,
                                        static_cast<c10::DeviceIndex>(index));
  }
  c10::Stream current_stream(int index) override {
    return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(index));
  }
  CudaStream handle(const c10::Stream& stream) override {
    return c10::cuda::CUDAStream(stream).stream();
  }
  c10::OptionalStreamGuard enter(const c10::Stream& stream) override {
    return c10::OptionalStreamGuard(stream);
  }

  CudaResult memory_info(size_t* free_bytes, size_t* total_bytes) override {
    return result_of(cudaMemGetInfo(free_bytes, total_bytes));
  }
  CudaResult host_register(const void* host, size_t bytes) override {
    return result_of(cudaHostRegister(mutable_pointer(host), bytes, cudaHostRegisterDefault));
  }
  CudaResult host_unregister(const void* host) override {
    return result_of(cudaHostUnregister(mutable_pointer(host)));
  }
  CudaResult host_allocate(void** host, size_t bytes) override {
    return result_of(cudaHostAlloc(host, bytes, cudaHostAllocDefault));
  }
  CudaResult host_free(void* host) override { return result_of(cudaFreeHost(host)); }
  // A thread that waits sleeps: elixird's workers need its core.
  CudaResult create_event(CudaEvent* event) override {
    return result_of(
        cudaEventCreateWithFlags(event, cudaEventDisableTiming | cudaEventBlockingSync));
  }
  CudaResult create_timed_event(CudaEvent* event) override {
    return result_of(cudaEventCreateWithFlags(event, cudaEventBlockingSync));
  }
  CudaResult destroy_event(CudaEvent event) override { return result_of(cudaEventDestroy(event)); }
  CudaResult record(CudaEvent event, CudaStream stream) override {
    return result_of(cudaEventRecord(event, stream));
  }
  CudaResult wait(CudaStream stream, CudaEvent event) override {
    return result_of(cudaStreamWaitEvent(stream, event, 0));
  }
  CudaResult is_capturing(CudaStream stream, bool* capturing) override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaError_t result = cudaStreamIsCapturing(stream, &status);
    *capturing = status != cudaStreamCaptureStatusNone;
    return result_of(result);
  }
  CudaResult query(CudaEvent event) override { return result_of(cudaEventQuery(event)); }
  CudaResult synchronize(CudaEvent event) override {
    return result_of(cudaEventSynchronize(event));
  }
  CudaResult elapsed(float* milliseconds, CudaEvent begin, CudaEvent end) override {
    return result_of(cudaEventElapsedTime(milliseconds, begin, end));
  }
  CudaResult synchronize_device() override { return result_of(cudaDeviceSynchronize()); }
  CudaResult copy(void* to, const void* from, size_t bytes, CopyKind kind,
                  CudaStream stream) override {
    return result_of(cudaMemcpyAsync(to, from, bytes, kind_of(kind), stream));
  }
  CudaResult zero(void* device, size_t bytes, CudaStream stream) override {
    return result_of(cudaMemsetAsync(device, 0, bytes, stream));
  }
  CudaResult take_error() override { return result_of(cudaGetLastError()); }
  const char* error_text(CudaResult result) override {
    return cudaGetErrorString(static_cast<cudaError_t>(result));
  }
  const char* error_name(CudaResult result) override {
    return cudaGetErrorName(static_cast<cudaError_t>(result));
  }

  Status update(const optim::UpdateSpan& span, const optim::AdamStep& step,
                CudaStream stream) override {
    return kernels::launch_adam(span, step, stream);
  }
  Status squared_norm(ComputeType type, const void* values, size_t numel, NormSum* result,
                      CudaStream stream) override {
    return kernels::launch_squared_norm(type, values, numel, result, stream);
  }
};

}  // namespace

std::unique_ptr<CudaDriver> make_cuda_driver() { return std::make_unique<RealCudaDriver>(); }

}  // namespace elixir
