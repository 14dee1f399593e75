// What LibTorch imports and training does not use. A call is answered with an error, and told.

#include <cstdio>

#include "tests/fake_cuda/call.h"

namespace fake_cuda {
namespace {

constexpr int kCublasNotSupported = 15;  // CUBLAS_STATUS_NOT_SUPPORTED

int absent(const char* name, int error) {
  ask(name, [] { return cudaSuccess; });
  std::fprintf(stderr, "fake CUDA: %s is not there\n", name);
  return error;
}

}  // namespace

FAKE_CUDA_API cudaError_t
cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                 cudaDriverEntryPointQueryResult* status) {
  std::fprintf(stderr, "fake CUDA: the driver's %s is not there\n", name);
  *function = nullptr;
  if (status != nullptr) *status = cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

FAKE_CUDA_API cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  return static_cast<cudaError_t>(
      absent("cudaDeviceEnablePeerAccess", cudaErrorPeerAccessUnsupported));
}

}  // namespace fake_cuda

// By other types than CUDA's headers declare: the arguments are not looked at.
#define FAKE_CUDA_ABSENT(name, error)                                                        \
  extern "C" __attribute__((visibility("default"))) int fake_absent_##name() __asm__(#name); \
  int fake_absent_##name() { return fake_cuda::absent(#name, error); }
#define FAKE_CUDART_ABSENT(name) FAKE_CUDA_ABSENT(name, cudaErrorNotSupported)
#define FAKE_CUBLAS_ABSENT(name) FAKE_CUDA_ABSENT(name, fake_cuda::kCublasNotSupported)
// Of complex numbers, and of real ones, too.
#define FAKE_CUBLAS_ABSENT_COMPLEX(name) \
  FAKE_CUBLAS_ABSENT(cublasC##name)      \
  FAKE_CUBLAS_ABSENT(cublasZ##name)
#define FAKE_CUBLAS_ABSENT_ALL(name) \
  FAKE_CUBLAS_ABSENT_COMPLEX(name)   \
  FAKE_CUBLAS_ABSENT(cublasD##name)  \
  FAKE_CUBLAS_ABSENT(cublasS##name)

FAKE_CUDART_ABSENT(cudaDeviceGetDefaultMemPool)
FAKE_CUDART_ABSENT(cudaFreeAsync)
FAKE_CUDART_ABSENT(cudaGraphDebugDotPrint)
FAKE_CUDART_ABSENT(cudaGraphDestroy)
FAKE_CUDART_ABSENT(cudaGraphExecDestroy)
FAKE_CUDART_ABSENT(cudaGraphGetNodes)
FAKE_CUDART_ABSENT(cudaGraphInstantiateWithFlags)
FAKE_CUDART_ABSENT(cudaGraphLaunch)
FAKE_CUDART_ABSENT(cudaGraphNodeGetDependencies)
FAKE_CUDART_ABSENT(cudaIpcCloseMemHandle)
FAKE_CUDART_ABSENT(cudaIpcGetEventHandle)
FAKE_CUDART_ABSENT(cudaIpcGetMemHandle)
FAKE_CUDART_ABSENT(cudaIpcOpenEventHandle)
FAKE_CUDART_ABSENT(cudaIpcOpenMemHandle)
FAKE_CUDART_ABSENT(cudaMallocAsync)
FAKE_CUDART_ABSENT(cudaMemPoolGetAttribute)
FAKE_CUDART_ABSENT(cudaMemPoolSetAccess)
FAKE_CUDART_ABSENT(cudaMemPoolSetAttribute)
FAKE_CUDART_ABSENT(cudaMemPoolTrimTo)
FAKE_CUDART_ABSENT(cudaStreamBeginCapture)
FAKE_CUDART_ABSENT(cudaStreamEndCapture)

FAKE_CUBLAS_ABSENT_COMPLEX(dotc_v2)
FAKE_CUBLAS_ABSENT_COMPLEX(dotu_v2)
FAKE_CUBLAS_ABSENT_COMPLEX(gemmStridedBatched)
FAKE_CUBLAS_ABSENT_COMPLEX(gemm_v2)
FAKE_CUBLAS_ABSENT_COMPLEX(gemv_v2)
FAKE_CUBLAS_ABSENT_ALL(gelsBatched)
FAKE_CUBLAS_ABSENT_ALL(geqrfBatched)
FAKE_CUBLAS_ABSENT_ALL(getrfBatched)
FAKE_CUBLAS_ABSENT_ALL(getrsBatched)
FAKE_CUBLAS_ABSENT_ALL(trsmBatched)
FAKE_CUBLAS_ABSENT_ALL(trsm_v2)
