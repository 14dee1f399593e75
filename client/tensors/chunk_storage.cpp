#include "client/tensors/chunk_storage.h"

#include <c10/core/TensorImpl.h>

#include "client/tensors/dispatch_key.h"

namespace elixir {

ChunkStorage::ChunkStorage(std::shared_ptr<ChunkBinding> binding, uint32_t chunk, size_t bytes,
                           c10::Device device)
    : c10::StorageImpl(use_byte_size_t(), c10::SymInt(static_cast<int64_t>(bytes)),
                       at::DataPtr(nullptr, device), /*allocator=*/nullptr, /*resizable=*/false),
      binding_(std::move(binding)),
      chunk_(chunk) {}

void ChunkStorage::place(void* block) { set_data_ptr_noswap(at::DataPtr(block, device())); }

at::Tensor chunk_view(const c10::intrusive_ptr<ChunkStorage>& storage, at::ScalarType dtype,
                      int64_t offset, at::IntArrayRef sizes) {
  const c10::DispatchKey backend = c10::computeDispatchKey(dtype, c10::kStrided, storage->device());
  auto tensor = c10::make_intrusive<c10::TensorImpl>(c10::Storage(storage),
                                                     c10::DispatchKeySet({backend, kChunkKey}),
                                                     c10::scalarTypeToTypeMeta(dtype));
  tensor->set_sizes_contiguous(sizes);
  tensor->set_storage_offset(offset);
  return at::Tensor(std::move(tensor));
}

ChunkStorage* chunk_storage_of(const at::Tensor& tensor) {
  const c10::TensorImpl* data = tensor.unsafeGetTensorImpl();
  if (!data->key_set().has(kChunkKey) || !data->has_storage()) return nullptr;
  // The key alone proves nothing: another library may use it.
  return dynamic_cast<ChunkStorage*>(data->unsafe_storage().unsafeGetStorageImpl());
}

}  // namespace elixir
