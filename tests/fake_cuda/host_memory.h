#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace fake_cuda {

// Page-locked host memory, by the rules of CUDA on Linux. All functions REQUIRE the runtime's
// mutex.

// What cudaHostRegister answers. A read-only shared mapping is refused: with ReadOnly by
// NotSupported, else by InvalidValue. A mapping that becomes
// read-only later stays registered. A private mapping of a file is accepted, and its pages become
// copies of the file's, as pinning them for writing makes them.
cudaError_t register_host(void* memory, size_t bytes, unsigned flags);
cudaError_t unregister_host(void* memory);
// Page-locked memory of cudaHostAlloc; null where there is no memory. No limit holds for it.
void* allocate_host(size_t bytes);
bool free_host(void* memory);

enum class Locking { kPageable, kPinned, kAcross };
// kAcross: part of it is registered, or it lies in two registrations.
Locking locking_of(const void* memory, size_t bytes);

}  // namespace fake_cuda
