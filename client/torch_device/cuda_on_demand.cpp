#include "client/torch_device/cuda_on_demand.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include "base/gpu.h"
#include "base/log.h"
#include "client/torch_device/cuda_library.h"

namespace elixir {
namespace {

using Guard = c10::impl::DeviceGuardImplInterface;

std::atomic<const Guard*>& registered_guard() {
  return c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::CUDA)];
}

// torch creates its "CUDAHooks" once, when something first asks for CUDA, and a process in which
// libtorch_cuda was not there by then has no CUDA for good.
std::unique_ptr<at::CUDAHooksInterface> load_for_hooks(at::CUDAHooksArgs args) {
  const auto plain = [] { return std::make_unique<at::CUDAHooksInterface>(); };
  if (cuda_is_left_out() || !gpu_present()) return plain();
  if (const Result<CudaLibrary*> library = load_cuda_library(); !library.ok()) {
    log_warn("no_cuda", "{}", library.status().message());
    return plain();
  }
  return at::CUDAHooksRegistry()->Create("CUDAHooks", args);
}

// Forwards all to torch's guard, also after that has taken its place: who got it first may keep it.
class LoadingGuard final : public Guard {
 public:
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::Device exchangeDevice(c10::Device d) const override { return real().exchangeDevice(d); }
  c10::Device getDevice() const override { return real().getDevice(); }
  void setDevice(c10::Device d) const override { real().setDevice(d); }
  void uncheckedSetDevice(c10::Device d) const noexcept override {
    if (const Guard* guard = loaded()) guard->uncheckedSetDevice(d);
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    if (loaded() == nullptr && !cuda_is_left_out() && gpu_present()) (void)load_cuda_library();
    const Guard* const guard = loaded();
    return guard == nullptr ? static_cast<c10::DeviceIndex>(0) : guard->deviceCount();
  }
  c10::DeviceCapability getDeviceCapability(c10::Device d) const override {
    return real().getDeviceCapability(d);
  }
  void synchronizeDevice(const c10::DeviceIndex d) const override { real().synchronizeDevice(d); }

  c10::Stream getStream(c10::Device d) const override { return real().getStream(d); }
  c10::Stream getDefaultStream(c10::Device d) const override { return real().getDefaultStream(d); }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool is_high_priority) const override {
    return real().getStreamFromGlobalPool(d, is_high_priority);
  }
  c10::Stream getNewStream(c10::Device d, int priority) const override {
    return real().getNewStream(d, priority);
  }
  c10::Stream exchangeStream(c10::Stream s) const override { return real().exchangeStream(s); }
  void* getStreamNativeHandle(const c10::Stream s) const override {
    return real().getStreamNativeHandle(s);
  }
  bool queryStream(const c10::Stream& s) const override { return real().queryStream(s); }
  void synchronizeStream(const c10::Stream& s) const override { real().synchronizeStream(s); }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& s) const override {
    real().recordDataPtrOnStream(data, s);
  }

  void record(void** event, const c10::Stream& s, const c10::DeviceIndex d,
              const c10::EventFlag flag) const override {
    real().record(event, s, d, flag);
  }
  void block(void* event, const c10::Stream& s) const override { real().block(event, s); }
  bool queryEvent(void* event) const override { return real().queryEvent(event); }
  void synchronizeEvent(void* event) const override { real().synchronizeEvent(event); }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex d) const override {
    return real().elapsedTime(first, second, d);
  }
  void destroyEvent(void* event, const c10::DeviceIndex d) const noexcept override {
    if (const Guard* guard = loaded()) guard->destroyEvent(event, d);
  }

 private:
  // torch's own; null until it is there.
  const Guard* loaded() const {
    const Guard* const guard = registered_guard().load();
    return guard == this ? nullptr : guard;
  }
  const Guard& real() const {
    const Result<CudaLibrary*> library = load_cuda_library();
    TORCH_CHECK(library.ok(), "a CUDA device was asked for: ", library.status().message());
    TORCH_CHECK(loaded() != nullptr, "libelixir_cuda.so brought no device guard of CUDA's");
    return *loaded();
  }
};

// For operators that have no kernel for CUDA: all of them until libtorch_cuda is there.
void load_for_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                     torch::jit::Stack* stack) {
  const Result<CudaLibrary*> library = load_cuda_library();
  TORCH_CHECK_NOT_IMPLEMENTED(library.ok(), op.operator_name(),
                              " was asked for on a CUDA device: ", library.status().message());
  TORCH_CHECK_NOT_IMPLEMENTED(op.hasKernelForDispatchKey(c10::DispatchKey::CUDA),
                              op.operator_name(), " has no kernel for CUDA in LibTorch");
  op.redispatchBoxed(keys, stack);
}

}  // namespace

void load_cuda_on_demand() {
  auto* const hooks = at::CUDAHooksRegistry();
  if (hooks->Has("CUDAHooks")) return;
  hooks->Register("CUDAHooks", load_for_hooks, c10::REGISTRY_FALLBACK);
  static LoadingGuard* const guard = new LoadingGuard();  // torch's threads may outlive main()
  registered_guard().store(guard);
  static torch::Library fallback(torch::Library::IMPL, "_", c10::DispatchKey::CUDA, __FILE__,
                                 __LINE__);
  fallback.fallback(torch::CppFunction::makeFromBoxedFunction<&load_for_kernel>());
}

}  // namespace elixir
