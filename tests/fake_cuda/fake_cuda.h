#pragma once

/* What libfakecuda.so offers beside CUDA's own functions, to the fake NCCL and to tests. Plain C.
 * Any thread may call any function. A program that is not linked with it finds the functions by
 * dlsym.
 *
 * Times are virtual nanoseconds: what the work would take on the device that the FAKE_CUDA_*
 * settings describe (README.md). They are computed when work is enqueued, so nothing that happens
 * on this machine changes them. */

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- work ---- */

/* Memory that work reads, or with `writes` also writes: of the device or page-locked host memory.
 */
typedef struct FakeCudaAccess {
  const void* memory;
  size_t bytes;
  int writes;
} FakeCudaAccess;

typedef struct FakeCudaWork {
  const char* name;    /* for counters and reports of races; lives as long as the program */
  int64_t duration_ns; /* virtual */
  const FakeCudaAccess* accesses; /* for races; read before the call returns */
  size_t n_accesses;
  void (*run)(
      void* argument); /* called by the stream's thread when all before it is done; it may
                          block, and then the stream does. Device memory by alias. May be null */
  void* argument;
} FakeCudaWork;

/* Enqueues work on a stream, as a kernel launch would. Returns the error that was injected, if any.
 */
cudaError_t fake_cuda_enqueue(cudaStream_t stream, const FakeCudaWork* work);

/* ---- memory ---- */

/* Where the host can reach device memory, which is unreadable at its own address. Null for an
 * address that is not device memory. */
void* fake_cuda_alias(const void* device_memory);

/* The device that memory lies on; -1 for host memory. */
int fake_cuda_device_of(const void* memory);

/* ---- errors ---- */

/* What FAKE_CUDA_FAIL_AFTER has injected; cudaSuccess if nothing was. */
cudaError_t fake_cuda_error(void);

/* ---- time and order ---- */

int64_t fake_cuda_host_ns(void); /* of the calling thread */
uint64_t fake_cuda_races(void);  /* found so far */

/* ---- counters ---- */

/* Adds to "counts" of the report under a name of the caller's. */
void fake_cuda_count(const char* name, uint64_t by);
/* Contexts made on a device: 0 or 1. */
int fake_cuda_contexts(int device);

#ifdef __cplusplus
}
#endif
