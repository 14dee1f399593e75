#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace elixir {

// Who can bring a chunk's bytes to the device. Called by the interception around every operator
// that reads a parameter. Any thread.
class ChunkSource {
 public:
  virtual ~ChunkSource() = default;

  // Gathers the distinct chunks and pins them, all or none. Throws elixir::Error.
  virtual void acquire(std::span<const uint32_t> chunks, const char* operator_name) = 0;

  // Undoes one acquire of the same chunks.
  virtual void release(std::span<const uint32_t> chunks) noexcept = 0;

  // The same for a scope that may last: no other thread's operator waits for its end.
  virtual void hold(std::span<const uint32_t> chunks, const char* holder) {
    acquire(chunks, holder);
  }
  virtual void let_go(std::span<const uint32_t> chunks) noexcept { release(chunks); }
};

// What a chunk's storage knows of its source. `source` turns null when the source ends before the
// tensors do.
struct ChunkBinding {
  ChunkSource* source = nullptr;
};

}  // namespace elixir
