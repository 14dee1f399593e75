// Devices, versions, errors.

#include <cstdio>
#include <cstring>
#include <utility>

#include "tests/fake_cuda/call.h"
#include "tests/fake_cuda/device_memory.h"
#include "tests/fake_cuda/settings.h"

namespace fake_cuda {
namespace {

constexpr int kVersion = 13000;
constexpr int kProcessors = 132;
constexpr int kThreadsOfBlock = 1024, kThreadsOfProcessor = 2048;
constexpr int kSharedBytesOfBlock = 227 << 10;

bool is_device(int device) { return device >= 0 && device < settings().devices; }

void fill(cudaDeviceProp& prop, int device) {
  std::memset(&prop, 0, sizeof prop);
  std::snprintf(prop.name, sizeof prop.name, "Fake GPU");
  prop.totalGlobalMem = settings().memory_bytes;
  prop.major = kCapabilityMajor;
  prop.minor = kCapabilityMinor;
  prop.multiProcessorCount = kProcessors;
  prop.warpSize = 32;
  prop.maxThreadsPerBlock = kThreadsOfBlock;
  prop.maxThreadsPerMultiProcessor = kThreadsOfProcessor;
  prop.maxBlocksPerMultiProcessor = 32;
  prop.sharedMemPerBlock = 48 << 10;
  prop.sharedMemPerBlockOptin = kSharedBytesOfBlock;
  prop.sharedMemPerMultiprocessor = kSharedBytesOfBlock + 1024;
  prop.regsPerBlock = prop.regsPerMultiprocessor = 65536;
  prop.maxGridSize[0] = 2147483647;
  prop.maxGridSize[1] = prop.maxGridSize[2] = 65535;
  prop.maxThreadsDim[0] = prop.maxThreadsDim[1] = 1024;
  prop.maxThreadsDim[2] = 64;
  prop.l2CacheSize = 60 << 20;
  prop.unifiedAddressing = prop.canMapHostMemory = 1;
  prop.textureAlignment = 512;
  prop.asyncEngineCount = 3;
  prop.pciBusID = 0xc1 + device;
  for (int i = 0; i < 16; ++i) prop.uuid.bytes[i] = static_cast<char>(i + device);
}

constexpr std::pair<cudaDeviceAttr, int> kAttributes[] = {
    {cudaDevAttrHostRegisterSupported, 1},
    {cudaDevAttrMultiProcessorCount, kProcessors},
    {cudaDevAttrComputeCapabilityMajor, kCapabilityMajor},
    {cudaDevAttrComputeCapabilityMinor, kCapabilityMinor},
    {cudaDevAttrMaxSharedMemoryPerBlockOptin, kSharedBytesOfBlock},
    {cudaDevAttrMaxThreadsPerBlock, kThreadsOfBlock},
    {cudaDevAttrMaxThreadsPerMultiProcessor, kThreadsOfProcessor},
    {cudaDevAttrUnifiedAddressing, 1},
};

int attribute(cudaDeviceAttr which) {
  for (const auto& [known, value] : kAttributes) {
    if (known == which) return value;
  }
  return 0;
}

struct KnownError {
  cudaError_t error;
  const char* name;
  const char* text;
};

constexpr KnownError kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "cudaErrorHostMemoryAlreadyRegistered"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "cudaErrorHostMemoryNotRegistered"},
};

KnownError find_error(cudaError_t error) {
  for (const KnownError& known : kErrors) {
    if (known.error == error) return known;
  }
  constexpr const char* kOther = "an error of the fake CUDA runtime";
  return {error, kOther, kOther};
}

}  // namespace

FAKE_CUDA_API cudaError_t cudaGetDeviceCount(int* count) {
  return ask("cudaGetDeviceCount", [&] {
    *count = settings().devices;
    return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
  });
}

// Since CUDA 12 this makes the device's context.
FAKE_CUDA_API cudaError_t cudaSetDevice(int device) {
  if (!is_device(device)) return remember(cudaErrorInvalidDevice);
  this_thread().device = device;
  return call("cudaSetDevice", [](Lock&) { return cudaSuccess; });
}

FAKE_CUDA_API cudaError_t cudaGetDevice(int* device) {
  *device = this_thread().device;
  return cudaSuccess;
}

FAKE_CUDA_API cudaError_t cudaDriverGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}

FAKE_CUDA_API cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}

FAKE_CUDA_API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* prop, int device) {
  return ask("cudaGetDeviceProperties", [&] {
    if (!is_device(device)) return cudaErrorInvalidDevice;
    fill(*prop, device);
    return cudaSuccess;
  });
}

FAKE_CUDA_API cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device) {
  return ask("cudaDeviceGetAttribute", [&] {
    if (!is_device(device)) return cudaErrorInvalidDevice;
    *value = attribute(which);
    return cudaSuccess;
  });
}

FAKE_CUDA_API cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int device) {
  std::snprintf(text, static_cast<size_t>(bytes), "0000:%02X:00.0", 0xc1 + device);
  return cudaSuccess;
}

FAKE_CUDA_API cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}

FAKE_CUDA_API cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

FAKE_CUDA_API cudaError_t cudaDeviceSynchronize() {
  return call("cudaDeviceSynchronize", [](Lock& lock) {
    wait_for_device(lock, this_thread().device, "cudaDeviceSynchronize");
    return cudaSuccess;
  });
}

FAKE_CUDA_API cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  return call("cudaMemGetInfo", [&](Lock&) {
    const uint64_t taken = settings().context_bytes + memory_of(this_thread().device).used_bytes();
    *total_bytes = settings().memory_bytes;
    *free_bytes = *total_bytes > taken ? *total_bytes - taken : 0;
    return cudaSuccess;
  });
}

// What was injected stays; any other error is told once.
FAKE_CUDA_API cudaError_t cudaGetLastError() {
  const Lock lock(runtime().mutex);
  if (runtime().injected != cudaSuccess) return runtime().injected;
  return std::exchange(this_thread().last_error, cudaSuccess);
}

FAKE_CUDA_API cudaError_t cudaPeekAtLastError() {
  const Lock lock(runtime().mutex);
  return runtime().injected != cudaSuccess ? runtime().injected : this_thread().last_error;
}

FAKE_CUDA_API const char* cudaGetErrorName(cudaError_t error) { return find_error(error).name; }

FAKE_CUDA_API const char* cudaGetErrorString(cudaError_t error) { return find_error(error).text; }

}  // namespace fake_cuda
