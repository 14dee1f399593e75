// Tensors in chunks, for Python, without elixird: tests/client/foreign_libraries.py loads this
// library and runs others' operators on them.

#include <torch/library.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "client/tensors/chunk_storage.h"
#include "client/tensors/interception.h"

namespace elixir {
namespace {

// As many chunks as are asked for, each placed only while an operator holds it.
class GrowingSource final : public ChunkSource {
 public:
  GrowingSource() : binding_(std::make_shared<ChunkBinding>()) {
    keep_interception();
    binding_->begin(this);
  }

  at::Tensor in_chunk(const at::Tensor& values) {
    Chunk& chunk = chunks_.emplace_back();
    chunk.bytes = values.detach().contiguous().clone();
    chunk.storage = c10::make_intrusive<ChunkStorage>(
        binding_, static_cast<uint32_t>(chunks_.size() - 1), chunk.bytes.nbytes(), values.device());
    return chunk_view(chunk.storage, values.scalar_type(), 0, values.sizes());
  }

  void acquire(std::span<const uint32_t> chunks, const char* /*name*/) override {
    for (const uint32_t at : chunks) {
      Chunk& chunk = chunks_[at];
      if (chunk.pins++ == 0) chunk.storage->place(chunk.bytes.data_ptr());
      ++acquired_;
    }
  }
  void release(std::span<const uint32_t> chunks) noexcept override {
    for (const uint32_t at : chunks) {
      if (--chunks_[at].pins == 0) chunks_[at].storage->place(nullptr);
    }
  }
  int64_t acquired() const { return acquired_; }

 private:
  struct Chunk {
    at::Tensor bytes;
    c10::intrusive_ptr<ChunkStorage> storage;
    int pins = 0;
  };

  std::shared_ptr<ChunkBinding> binding_;
  std::vector<Chunk> chunks_;
  int64_t acquired_ = 0;
};

GrowingSource& source() {
  static auto* const all = new GrowingSource;
  return *all;
}

TORCH_LIBRARY(elixir_chunks, library) {
  // A copy of the values, as a parameter in a chunk is.
  library.def("in_chunk(Tensor values) -> Tensor",
              torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd,
                              [](const at::Tensor& values) { return source().in_chunk(values); }));
  // How often operators have gathered chunks.
  library.def("acquired() -> int", [] { return source().acquired(); });
}

}  // namespace
}  // namespace elixir
