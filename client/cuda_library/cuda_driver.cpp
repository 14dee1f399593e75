#include "client/cuda/cuda_driver.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <c10/core/StreamGuard.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include "base/throw_error.h"
#include "client/tensors/scalar_type.h"
#include "client/torch_device/torch_stream.h"
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

c10::DeviceIndex number(int index) { return static_cast<c10::DeviceIndex>(index); }

TorchStream packed(const c10::Stream& stream) {
  const c10::StreamData3 data = stream.pack3();
  return {data.stream_id, data.device_index, static_cast<int64_t>(data.device_type)};
}

// torch's errors begin with a line for people; a backtrace may follow.
template <typename Call>
auto torch_call(Call&& call) {
  try {
    return call();
  } catch (const c10::OutOfMemoryError& failure) {
    throw Error(Status(Code::kResourceExhausted, failure.what_without_backtrace()));
  } catch (const c10::Error& failure) {
    throw Error(Status(Code::kInternal, failure.what_without_backtrace()));
  }
}

class RealCudaDriver final : public CudaDriver {
 public:
  void use_device(int index) override {
    torch_call([&] {
      at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
      c10::cuda::set_device(number(index), /*force=*/true);
    });
  }
  void limit_memory(int index, double fraction) override {
    torch_call([&] { allocator::setMemoryFraction(fraction, number(index)); });
  }
  void* allocate(size_t bytes) override {
    return torch_call([&] { return allocator::raw_alloc(bytes); });
  }
  void free(void* memory) override {
    torch_call([&] { allocator::raw_delete(memory); });
  }
  uint64_t peak_bytes(int index) override {
    constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto stats = torch_call([&] { return allocator::getDeviceStats(number(index)); });
    return static_cast<uint64_t>(stats.allocated_bytes[kAll].peak);
  }
  TorchStream pool_stream(int index) override {
    return torch_call([&] {
      return packed(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, number(index)));
    });
  }
  TorchStream current_stream(int index) override {
    return packed(c10::cuda::getCurrentCUDAStream(number(index)));
  }
  CudaStream handle(const TorchStream& stream) override {
    return c10::cuda::CUDAStream(torch_stream(stream)).stream();
  }
  void sum_gradients(const TorchStream& stream, ComputeType type, const void* grads, size_t numel,
                     float* sums, bool begins) override {
    torch_call([&] {
      const c10::StreamGuard guard(torch_stream(stream));
      const auto options = at::TensorOptions().device(guard.current_device());
      const std::vector<int64_t> shape = {static_cast<int64_t>(numel)};
      at::Tensor sum = at::from_blob(sums, shape, options.dtype(at::kFloat));
      const at::Tensor added =
          at::from_blob(const_cast<void*>(grads), shape, options.dtype(scalar_type(type)));
      if (begins) {
        sum.copy_(added);
      } else {
        sum.add_(added);
      }
    });
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
