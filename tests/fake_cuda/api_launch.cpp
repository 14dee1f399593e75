// Kernels: their names as they are registered, and launches. torch's do nothing.

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "tests/fake_cuda/call.h"
#include "tests/fake_cuda/elixir_kernels.h"
#include "tests/fake_cuda/settings.h"
#include "tests/fake_cuda/symbols.h"

namespace fake_cuda {
namespace {

struct Kernel {
  const char* mangled;
  std::string name;  // empty until its first launch
};

// By the host function that stands for it. Filled before main, when libraries are loaded.
std::map<const void*, Kernel>& kernels() {
  static auto* const all = new std::map<const void*, Kernel>;
  return *all;
}

const std::string& name_of(const void* function) {
  const auto found = kernels().find(function);
  static const auto* const unknown = new std::string("a kernel that was not registered");
  if (found == kernels().end()) return *unknown;
  if (found->second.name.empty()) found->second.name = demangled(found->second.mangled);
  return found->second.name;
}

cudaError_t launch(const char* call_name, const void* function, void** arguments,
                   cudaStream_t handle) {
  return call(call_name, [&](Lock&) {
    Stream* const stream = find_stream(handle);
    if (stream == nullptr || stream->device != this_thread().device) {
      return cudaErrorInvalidResourceHandle;
    }
    const std::string& name = name_of(function);
    std::optional<Work> work = elixir_kernel(name, arguments);
    if (!work) {
      work = Work{.name = name.c_str(),
                  .kind = WorkKind::kKernel,
                  .duration_ns = settings().kernel_ns,
                  .accesses = {},
                  .run = {}};
    }
    enqueue(*stream, std::move(*work));
    count_launch();
    return cudaSuccess;
  });
}

struct Configuration {
  dim3 grid, block;
  size_t shared_bytes;
  cudaStream_t stream;
};
thread_local std::vector<Configuration> configurations;

}  // namespace

// ---- what nvcc's code calls ----

FAKE_CUDA_API void** __cudaRegisterFatBinary(void*) {
  static void* handle[4];
  return handle;
}
FAKE_CUDA_API void __cudaRegisterFatBinaryEnd(void**) {}
FAKE_CUDA_API void __cudaUnregisterFatBinary(void**) {}
FAKE_CUDA_API void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}

FAKE_CUDA_API void __cudaRegisterFunction(void**, const char* function, char*, const char* name,
                                          int, uint3*, uint3*, dim3*, dim3*, int*) {
  const Lock lock(runtime().mutex);
  kernels()[function] = {.mangled = name, .name = {}};
}

FAKE_CUDA_API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                                   cudaStream_t stream) {
  configurations.push_back({grid, block, shared_bytes, stream});
  return 0;
}

FAKE_CUDA_API cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes,
                                                     void* stream) {
  const Configuration last = configurations.back();
  configurations.pop_back();
  *grid = last.grid;
  *block = last.block;
  *shared_bytes = last.shared_bytes;
  std::memcpy(stream, &last.stream, sizeof last.stream);
  return cudaSuccess;
}

FAKE_CUDA_API cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}

// ---- launches, all counted as one kind of call ----

FAKE_CUDA_API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void** arguments,
                                             size_t, cudaStream_t stream) {
  return launch("cudaLaunchKernel", reinterpret_cast<const void*>(kernel), arguments, stream);
}

FAKE_CUDA_API cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void** arguments,
                                           size_t, cudaStream_t stream) {
  return launch("cudaLaunchKernel", function, arguments, stream);
}

FAKE_CUDA_API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config,
                                              const void* function, void** arguments) {
  return launch("cudaLaunchKernel", function, arguments, config->stream);
}

// ---- what a kernel is like ----

FAKE_CUDA_API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  std::memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->binaryVersion = attributes->ptxVersion = kCapabilityMajor * 10 + kCapabilityMinor;
  return cudaSuccess;
}

FAKE_CUDA_API cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return cudaSuccess;
}

FAKE_CUDA_API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks,
                                                                                 const void*, int,
                                                                                 size_t, unsigned) {
  *blocks = 2;
  return cudaSuccess;
}

}  // namespace fake_cuda
