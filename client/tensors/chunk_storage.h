#pragma once

// A chunk is a storage. All parameters of a chunk are views of one StorageImpl whose data pointer
// is an rCache block while the chunk is gathered and null while it is not. Autograd keeps the
// storage, not the bytes, so nothing is copied for an operator.
// Note: docs/design/elixir.md, "chunk storage".

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <memory>

#include "client/tensors/chunk_source.h"

namespace elixir {

class ChunkStorage final : public c10::StorageImpl {
 public:
  ChunkStorage(std::shared_ptr<ChunkBinding> binding, uint32_t chunk, size_t bytes,
               c10::Device device);

  uint32_t chunk() const { return chunk_; }
  const std::shared_ptr<ChunkBinding>& binding() const { return binding_; }

  // Sets the place of the chunk's bytes. With null the chunk is not gathered. Then LibTorch throws
  // if a program asks for a pointer that it could write through (data_ptr(); in Python numpy(),
  // DLPack, compiled kernels).
  void place(void* block);
  // Nobody uses the bytes now. They stay where they are, but another chunk may overwrite them at
  // any time. So a request for a pointer gets that error, too.
  void close();
  // Whether it is placed and not closed.
  bool open() const;

 private:
  const std::shared_ptr<ChunkBinding> binding_;
  const uint32_t chunk_;
};

// A contiguous tensor of `sizes` at element `offset` of the chunk, carrying kChunkKey.
at::Tensor chunk_view(const c10::intrusive_ptr<ChunkStorage>& storage, at::ScalarType dtype,
                      int64_t offset, at::IntArrayRef sizes);

// The chunk storage under a tensor (a parameter or a view of one), or null.
ChunkStorage* chunk_storage_of(const at::Tensor& tensor);
// Whether chunk_storage_of(tensor) is `storage`, without a cast.
bool lies_in(const at::Tensor& tensor, const ChunkStorage& storage);

// From now on LibTorch throws if a program serialises (torch::save, torch.save) a tensor whose
// memory is not here. Such a tensor is a parameter that is not gathered, or a gradient that has
// gone to elixird. Without this call torch::save writes zeros. Any thread.
void keep_serialisation_honest();

}  // namespace elixir
