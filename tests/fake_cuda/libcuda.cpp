// A libcuda.so.1 for LibTorch, which links it. torch asks the driver for nothing but whether a
// device has a context; a program that asks more is told so, and fails.

#include <cstdio>

#define FAKE_CUDA_DRIVER extern "C" __attribute__((visibility("default")))

extern "C" int fake_cuda_contexts(int device);  // of libfakecuda.so, which is preloaded

namespace {
constexpr int kUnknownError = 999;
char fake_context;  // nobody looks into it
}  // namespace

FAKE_CUDA_DRIVER int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  if (flags != nullptr) *flags = 0;
  *active = fake_cuda_contexts(device);
  return 0;
}

FAKE_CUDA_DRIVER int cuCtxGetCurrent(void** context) {
  *context = &fake_context;
  return 0;
}

FAKE_CUDA_DRIVER int cuCtxSetCurrent(void*) { return 0; }

FAKE_CUDA_DRIVER int cuDevicePrimaryCtxRetain(void** context, int) {
  *context = &fake_context;
  return 0;
}

FAKE_CUDA_DRIVER int cuGetErrorString(int, const char** text) {
  *text = "an error of the fake CUDA driver";
  return 0;
}

#define FAKE_CUDA_UNKNOWN(name)                                               \
  FAKE_CUDA_DRIVER int name() {                                               \
    std::fprintf(stderr, "fake CUDA: the driver's " #name " is not there\n"); \
    return kUnknownError;                                                     \
  }

FAKE_CUDA_UNKNOWN(cuDeviceGet)
FAKE_CUDA_UNKNOWN(cuDeviceGetAttribute)
FAKE_CUDA_UNKNOWN(cuFuncGetAttribute)
FAKE_CUDA_UNKNOWN(cuFuncSetAttribute)
FAKE_CUDA_UNKNOWN(cuFuncSetCacheConfig)
FAKE_CUDA_UNKNOWN(cuLaunchCooperativeKernel)
FAKE_CUDA_UNKNOWN(cuLaunchKernel)
FAKE_CUDA_UNKNOWN(cuLinkAddData_v2)
FAKE_CUDA_UNKNOWN(cuLinkComplete)
FAKE_CUDA_UNKNOWN(cuLinkCreate_v2)
FAKE_CUDA_UNKNOWN(cuModuleGetFunction)
FAKE_CUDA_UNKNOWN(cuModuleLoad)
FAKE_CUDA_UNKNOWN(cuModuleLoadData)
FAKE_CUDA_UNKNOWN(cuModuleLoadDataEx)
FAKE_CUDA_UNKNOWN(cuModuleUnload)
FAKE_CUDA_UNKNOWN(cuOccupancyMaxActiveBlocksPerMultiprocessor)
FAKE_CUDA_UNKNOWN(cuPointerGetAttribute)
FAKE_CUDA_UNKNOWN(cuTensorMapEncodeTiled)
