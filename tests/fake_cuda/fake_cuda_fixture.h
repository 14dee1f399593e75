#pragma once

// For tests that link the fake and call CUDA's functions themselves.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>

#include "tests/fake_cuda/fake_cuda.h"

namespace fake_cuda {

#define ASSERT_CUDA(call) ASSERT_EQ(call, cudaSuccess)
#define EXPECT_CUDA(call) EXPECT_EQ(call, cudaSuccess)

inline cudaStream_t make_stream() {
  cudaStream_t stream = nullptr;
  EXPECT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

inline cudaEvent_t make_event(unsigned flags = cudaEventDefault) {
  cudaEvent_t event = nullptr;
  EXPECT_CUDA(cudaEventCreateWithFlags(&event, flags));
  return event;
}

inline std::byte* make_device_memory(size_t bytes) {
  void* memory = nullptr;
  EXPECT_CUDA(cudaMalloc(&memory, bytes));
  return static_cast<std::byte*>(memory);
}

inline std::byte* make_pinned_memory(size_t bytes) {
  void* memory = nullptr;
  EXPECT_CUDA(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault));
  return static_cast<std::byte*>(memory);
}

// Work that takes virtual time and nothing else.
inline cudaError_t enqueue_ns(cudaStream_t stream, int64_t ns) {
  const FakeCudaWork work = {"work of a test", ns, nullptr, 0, nullptr, nullptr};
  return fake_cuda_enqueue(stream, &work);
}

}  // namespace fake_cuda
