#pragma once

// Chunks that are held in memory, without elixird.

#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <span>
#include <string>

#include "client/tensors/chunk_storage.h"
#include "client/tensors/interception.h"

namespace elixir {

inline constexpr int64_t kChunkNumel = 256;

// Two chunks of FP32, each placed only while an operator holds it.
class FakeSource final : public ChunkSource {
 public:
  FakeSource() : binding_(std::make_shared<ChunkBinding>()) {
    keep_interception();
    binding_->begin(this);
    for (uint32_t chunk = 0; chunk < 2; ++chunk) {
      bytes_[chunk] = at::randn({kChunkNumel});
      storages_[chunk] = c10::make_intrusive<ChunkStorage>(
          binding_, chunk, kChunkNumel * sizeof(float), c10::Device(c10::kCPU));
    }
  }
  ~FakeSource() override { binding_->end(); }

  void acquire(std::span<const uint32_t> chunks, const char* name) override {
    last_operator = name;
    for (uint32_t chunk : chunks) {
      if (pins_[chunk]++ == 0) storages_[chunk]->place(bytes_[chunk].data_ptr());
      ++acquired[chunk];
    }
  }
  void release(std::span<const uint32_t> chunks) noexcept override {
    for (uint32_t chunk : chunks) {
      if (--pins_[chunk] == 0) storages_[chunk]->place(nullptr);
    }
  }

  at::Tensor view(uint32_t chunk, at::IntArrayRef sizes) {
    return chunk_view(storages_[chunk], at::kFloat, 0, sizes);
  }
  at::Tensor plain(uint32_t chunk, at::IntArrayRef sizes) {
    int64_t numel = 1;
    for (int64_t size : sizes) numel *= size;
    return bytes_[chunk].narrow(0, 0, numel).view(sizes).clone();
  }
  bool all_released() const { return pins_[0] == 0 && pins_[1] == 0; }

  std::map<uint32_t, int> acquired;
  std::string last_operator;

 private:
  std::shared_ptr<ChunkBinding> binding_;
  at::Tensor bytes_[2];
  c10::intrusive_ptr<ChunkStorage> storages_[2];
  int pins_[2] = {0, 0};
};

}  // namespace elixir
