#pragma once

#include "tests/fake_cuda/runtime.h"

// A function of CUDA's that the library offers in CUDA's place.
#define FAKE_CUDA_API extern "C" __attribute__((visibility("default")))

namespace fake_cuda {

// What stands at the begin of most functions: counts the call, takes its virtual time, makes the
// device's context, and answers with the injected error when there is one.
cudaError_t begin_call(const char* name);
// Counts only: for questions that need no context and are answered whatever has happened.
void begin_question(const char* name);
// Keeps an error for cudaGetLastError.
cudaError_t remember(cudaError_t outcome);
// One more launch, of FAKE_CUDA_FAIL_AFTER.
void count_launch();

// body(lock) -> cudaError_t, under the runtime's mutex.
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
