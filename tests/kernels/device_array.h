#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdlib>
#include <utility>
#include <vector>

#include "base/check.h"

namespace elixir::kernels {

// Ends the program if the call of CUDA failed.
inline void must(cudaError_t outcome) {
  ELIXIR_CHECK(outcome == cudaSuccess, "{}", cudaGetErrorString(outcome));
}

class Stream {
 public:
  Stream() { must(cudaStreamCreate(&stream_)); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }
  void wait() const { must(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

// Device memory of `numel` elements. Each byte is 0xa5 at first.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t numel) : numel_(numel) {
    if (numel == 0) return;
    must(cudaMalloc(&data_, bytes()));
    must(cudaMemset(data_, 0xa5, bytes()));
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    if (numel_ != 0) must(cudaMemcpy(data_, values.data(), bytes(), cudaMemcpyHostToDevice));
  }
  DeviceArray(DeviceArray&& other) noexcept
      : numel_(std::exchange(other.numel_, 0)), data_(std::exchange(other.data_, nullptr)) {}
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  T* data() const { return static_cast<T*>(data_); }
  void upload(const std::vector<T>& values, cudaStream_t stream) {
    copy(data_, values.data(), values.size(), cudaMemcpyHostToDevice, stream);
  }
  void download(std::vector<T>& values, cudaStream_t stream) const {
    copy(values.data(), data_, values.size(), cudaMemcpyDeviceToHost, stream);
  }
  std::vector<T> read() const {
    std::vector<T> values(numel_);
    if (numel_ != 0) must(cudaMemcpy(values.data(), data_, bytes(), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  size_t bytes() const { return numel_ * sizeof(T); }
  void copy(void* to, const void* from, size_t numel, cudaMemcpyKind kind,
            cudaStream_t stream) const {
    ELIXIR_CHECK(numel <= numel_, "{} elements, there is room for {}", numel, numel_);
    if (numel != 0) must(cudaMemcpyAsync(to, from, numel * sizeof(T), kind, stream));
  }

  size_t numel_;
  void* data_ = nullptr;
};

// The size of a test: `full`, or one part in ELIXIR_GPU_TEST_PART, under a slow memory checker.
inline size_t test_numel(size_t full) {
  const char* const part = std::getenv("ELIXIR_GPU_TEST_PART");
  return part == nullptr ? full : full / static_cast<size_t>(std::atoi(part)) + 1;
}

}  // namespace elixir::kernels
