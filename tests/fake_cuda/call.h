#pragma once

#include "tests/fake_cuda/runtime.h"

// Exports a function in CUDA's place.
#define FAKE_CUDA_API extern "C" __attribute__((visibility("default")))

namespace fake_cuda {

// Begins most functions: counts the call, takes its virtual time, makes the device's context, and
// returns the injected error if there is one.
cudaError_t begin_call(const char* name);
// Only counts the call: for questions that need no context and that no earlier error affects.
void begin_question(const char* name);
// Keeps an error for cudaGetLastError.
cudaError_t remember(cudaError_t outcome);
// Counts a launch, for FAKE_CUDA_FAIL_AFTER.
void count_launch();

// Calls body(lock) -> cudaError_t under the runtime's mutex.
template <class Body>
cudaError_t call(const char* name, Body body) {
  Lock lock(runtime().mutex);
  const cudaError_t refused = begin_call(name);
  return remember(refused != cudaSuccess ? refused : body(lock));
}

template <class Body>
cudaError_t ask(const char* name, Body body) {
  Lock lock(runtime().mutex);
  begin_question(name);
  return remember(body());
}

}  // namespace fake_cuda
