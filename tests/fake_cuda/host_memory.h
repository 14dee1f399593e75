#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace fake_cuda {

// Page-locked host memory, by the rules of CUDA on Linux. All functions REQUIRE the runtime's
// mutex.

// Answers as cudaHostRegister does. A read-only shared mapping is an error: NotSupported with the
// ReadOnly flag, else InvalidValue. A mapping that becomes read-only later stays registered. A
// private mapping of a file is accepted. Its pages become copies of the file's, because pinning for
// writing makes copies.
cudaError_t register_host(void* memory, size_t bytes, unsigned flags);
cudaError_t unregister_host(void* memory);
// Page-locked memory for cudaHostAlloc; null: there is no memory. No limit applies to it.
void* allocate_host(size_t bytes);
bool free_host(void* memory);

enum class Locking { kPageable, kPinned, kAcross };
// kAcross: only part of the memory is registered, or it lies in two registrations.
Locking locking_of(const void* memory, size_t bytes);

}  // namespace fake_cuda
