#include "client/tensors/chunk_storage.h"

#include <c10/core/TensorImpl.h>
#include <torch/csrc/jit/serialization/pickler_helper.h>

#include "base/throw_error.h"
#include "client/tensors/dispatch_key.h"
#include "client/tensors/grad_mark.h"

namespace elixir {
namespace {

// LibTorch sets StorageImpl's flag that refuses pointers for writing, and has nothing to clear it.
// An explicit instantiation may name a private member ([temp.spec.general]).
template <auto Member>
struct WriteFlag {
  friend bool& refuses_pointers(c10::StorageImpl& storage) { return storage.*Member; }
};
bool& refuses_pointers(c10::StorageImpl& storage);
template struct WriteFlag<&c10::StorageImpl::throw_on_mutable_data_ptr_>;

using Metadata = std::unordered_map<std::string, bool>;

// LibTorch calls it for every tensor that it serialises, and takes nothing from it.
void refuse_what_has_no_memory(const at::Tensor& tensor, Metadata& /*metadata*/) {
  if (const GradMark* const mark = grad_mark_of(tensor)) mark->refuse("torch::save");
  const ChunkStorage* const storage = chunk_storage_of(tensor);
  if (storage == nullptr || storage->data() != nullptr) return;
  throw Error(error(Code::kInvalidArgument,
                    "torch::save of a parameter whose chunk is not gathered: save a copy of it "
                    "(parameter.detach().clone()), or save inside the scope of "
                    "elixir::gathered(model->parameters())"));
}

}  // namespace

ChunkStorage::ChunkStorage(std::shared_ptr<ChunkBinding> binding, uint32_t chunk, size_t bytes,
                           c10::Device device)
    : c10::StorageImpl(use_byte_size_t(), c10::SymInt(static_cast<int64_t>(bytes)),
                       at::DataPtr(nullptr, device), /*allocator=*/nullptr, /*resizable=*/false),
      binding_(std::move(binding)),
      chunk_(chunk) {
  place(nullptr);
}

void ChunkStorage::place(void* block) {
  refuses_pointers(*this) = block == nullptr;
  set_data_ptr_noswap(at::DataPtr(block, device()));  // looks at the flag
}

void ChunkStorage::close() {
  refuses_pointers(*this) = true;
  set_data_ptr_noswap(at::DataPtr(const_cast<void*>(data()), device()));
}

bool ChunkStorage::open() const { return !refuses_pointers(const_cast<ChunkStorage&>(*this)); }

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

namespace {

// Null: not that of a chunk. The key alone proves nothing: another library may use it.
c10::StorageImpl* storage_with_key(const at::Tensor& tensor) {
  const c10::TensorImpl* data = tensor.unsafeGetTensorImpl();
  if (!data->key_set().has(kChunkKey) || !data->has_storage()) return nullptr;
  return data->unsafe_storage().unsafeGetStorageImpl();
}

}  // namespace

ChunkStorage* chunk_storage_of(const at::Tensor& tensor) {
  return dynamic_cast<ChunkStorage*>(storage_with_key(tensor));
}

bool lies_in(const at::Tensor& tensor, const ChunkStorage& storage) {
  return storage_with_key(tensor) == &storage;
}

void keep_serialisation_honest() {
  static const bool once = [] {
    for (const c10::DeviceType type : {c10::DeviceType::CPU, c10::DeviceType::CUDA}) {
      if (torch::jit::GetBackendMetaSerialization()[static_cast<size_t>(type)]) continue;
      torch::jit::GetBackendMetaAllowlist().insert(type);
      torch::jit::TensorBackendMetaRegistry(type, &refuse_what_has_no_memory,
                                            [](const at::Tensor&, Metadata&) {});
    }
    return true;
  }();
  (void)once;
}

}  // namespace elixir
