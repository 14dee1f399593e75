#pragma once

/* Functions of libfakecuda.so beside CUDA's own, for the fake NCCL and for tests. Plain C.
 * Any thread may call any function. A program that is not linked with the library finds the
 * functions by dlsym.
 *
 * Times are virtual nanoseconds: the time of the work on the device that the FAKE_CUDA_* settings
 * describe (README.md). They are computed when work is enqueued, so events on this machine do not
 * change them. */

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- work ---- */

/* Memory that work reads, or with `writes` also writes: device or page-locked host memory. */
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
  void (*run)(void* argument); /* the stream's thread calls it when all earlier work is done. If it
                                  blocks, the stream blocks. Uses aliases. May be null */
  void* argument;
} FakeCudaWork;

/* Enqueues work on a stream, like a kernel launch. Returns the injected error, if any. */
cudaError_t fake_cuda_enqueue(cudaStream_t stream, const FakeCudaWork* work);

/* ---- memory ---- */

/* The host's address of device memory, which is unreadable at its own address. Null for an
 * address that is not device memory. */
void* fake_cuda_alias(const void* device_memory);

/* The device that memory lies on; -1 for host memory. */
int fake_cuda_device_of(const void* memory);

/* ---- errors ---- */

/* The error that FAKE_CUDA_FAIL_AFTER has injected; cudaSuccess: none. */
cudaError_t fake_cuda_error(void);

/* ---- time and order ---- */

int64_t fake_cuda_host_ns(void); /* the calling thread's time */
uint64_t fake_cuda_races(void);  /* races found so far */

/* ---- counters ---- */

/* Adds `by` to the report's "counts", under the caller's name. */
void fake_cuda_count(const char* name, uint64_t by);
/* Contexts made on a device: 0 or 1. */
int fake_cuda_contexts(int device);

#ifdef __cplusplus
}
#endif
