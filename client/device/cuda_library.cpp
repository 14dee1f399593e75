#include "client/device/cuda_library.h"

#include <ATen/detail/CUDAHooksInterface.h>

#include "base/dynamic_library.h"
#include "base/gpu.h"
#include "base/log.h"

namespace elixir {
namespace {

Result<CudaLibrary*> load() {
  const Result<DynamicLibrary> file = DynamicLibrary::load(cuda_library_search());
  if (!file.ok()) return file.status();
  const auto version = file->function<uint32_t()>("elixir_cuda_library_version");
  if (!version.ok()) return version.status();
  if (const uint32_t found = (*version)(); found != kCudaLibraryVersion) {
    return error(Code::kVersionMismatch,
                 "{} has version {} and this program needs {}; install or build both together",
                 file->path(), found, kCudaLibraryVersion);
  }
  const auto make = file->function<CudaLibrary*()>("elixir_cuda_library");
  if (!make.ok()) return make.status();
  return (*make)();
}

// torch creates its "CUDAHooks" once, when something first asks for CUDA, and a process in which
// libtorch_cuda was not there by then has no CUDA for good. This stands in its place until then:
// loading the library puts torch's own in the registry, over this one.
std::unique_ptr<at::CUDAHooksInterface> load_when_torch_asks(at::CUDAHooksArgs args) {
  const auto plain = [] { return std::make_unique<at::CUDAHooksInterface>(); };
  if (!gpu_present()) return plain();
  if (const Result<CudaLibrary*> library = load_cuda_library(); !library.ok()) {
    log_warn("no_cuda", "{}", library.status().message());
    return plain();
  }
  return at::CUDAHooksRegistry()->Create("CUDAHooks", args);
}

// A program that links libtorch_cuda itself has the real one already.
const bool registered = [] {
  auto* registry = at::CUDAHooksRegistry();
  if (registry->Has("CUDAHooks")) return false;
  registry->Register("CUDAHooks", load_when_torch_asks, c10::REGISTRY_FALLBACK);
  return true;
}();

}  // namespace

Result<CudaLibrary*> load_cuda_library() {
  static const Result<CudaLibrary*> library = load();
  return library;
}

}  // namespace elixir
