// Device memory and page-locked host memory.

#include <cstring>

#include "tests/fake_cuda/call.h"
#include "tests/fake_cuda/device_memory.h"
#include "tests/fake_cuda/host_memory.h"
#include "tests/fake_cuda/races.h"

namespace fake_cuda {

FAKE_CUDA_API cudaError_t cudaMalloc(void** memory, size_t bytes) {
  return call("cudaMalloc", [&](Lock&) {
    if (bytes == 0) {
      *memory = nullptr;
      return cudaSuccess;
    }
    void* const found = memory_of(this_thread().device).allocate(bytes);
    if (found == nullptr) return cudaErrorMemoryAllocation;
    forget_accesses(reinterpret_cast<uintptr_t>(found), bytes);
    *memory = found;
    return cudaSuccess;
  });
}

FAKE_CUDA_API cudaError_t cudaFree(void* memory) {
  return call("cudaFree", [&](Lock& lock) {
    if (memory == nullptr) return cudaSuccess;
    DeviceMemory* const owner = memory_at(memory);
    if (owner == nullptr || owner->bytes_at(memory) == 0) return cudaErrorInvalidValue;
    wait_for_device(lock, device_of(memory), "cudaFree");
    forget_accesses(reinterpret_cast<uintptr_t>(memory), owner->bytes_at(memory));
    owner->free(memory);
    return cudaSuccess;
  });
}

FAKE_CUDA_API cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned flags) {
  return call("cudaHostRegister", [&](Lock&) { return register_host(memory, bytes, flags); });
}

FAKE_CUDA_API cudaError_t cudaHostUnregister(void* memory) {
  return call("cudaHostUnregister", [&](Lock&) { return unregister_host(memory); });
}

FAKE_CUDA_API cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  return call("cudaHostAlloc", [&](Lock&) {
    void* const found = allocate_host(bytes);
    if (found == nullptr) return cudaErrorMemoryAllocation;
    *memory = found;
    return cudaSuccess;
  });
}

FAKE_CUDA_API cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  return cudaHostAlloc(memory, bytes, 0);
}

FAKE_CUDA_API cudaError_t cudaFreeHost(void* memory) {
  return call("cudaFreeHost", [&](Lock& lock) {
    if (memory == nullptr) return cudaSuccess;
    wait_for_device(lock, this_thread().device, "cudaFreeHost");
    return free_host(memory) ? cudaSuccess : cudaErrorInvalidValue;
  });
}

FAKE_CUDA_API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes,
                                                   const void* address) {
  return ask("cudaPointerGetAttributes", [&] {
    std::memset(attributes, 0, sizeof *attributes);
    attributes->device = device_of(address);
    if (attributes->device >= 0) {
      attributes->type = cudaMemoryTypeDevice;
      attributes->devicePointer = const_cast<void*>(address);
    } else if (locking_of(address, 1) == Locking::kPinned) {
      attributes->type = cudaMemoryTypeHost;
      attributes->device = this_thread().device;
      attributes->hostPointer = attributes->devicePointer = const_cast<void*>(address);
    } else {
      attributes->type = cudaMemoryTypeUnregistered;
    }
    return cudaSuccess;
  });
}

}  // namespace fake_cuda
