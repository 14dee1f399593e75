#include "client/tensors/grad_mark.h"

#include <ATen/ATen.h>
#include <c10/core/TensorImpl.h>
#include <torch/csrc/autograd/graph_task.h>

#include <utility>

#include "base/throw_error.h"
#include "client/tensors/chunk_storage.h"
#include "client/tensors/dispatch_key.h"

namespace elixir {

GradMark::GradMark(std::string parameter, at::IntArrayRef sizes, size_t bytes, c10::Device device)
    : c10::StorageImpl(use_byte_size_t(), c10::SymInt(static_cast<int64_t>(bytes)),
                       at::DataPtr(nullptr, device), /*allocator=*/nullptr, /*resizable=*/false),
      parameter_(std::move(parameter)),
      sizes_(sizes.vec()) {
  set_throw_on_mutable_data_ptr();
}

// A copy, since the program may change its values afterwards; autograd gives its own away.
void GradMark::add(const at::Tensor& values) {
  if (const GradMark* const mark = grad_mark_of(values)) mark->refuse("aten::add_");
  const bool own = torch::autograd::get_current_graph_task_id() != -1 &&
                   chunk_storage_of(values) == nullptr && values.sizes() == at::IntArrayRef(sizes_);
  const at::Tensor here = own ? values : values.detach().expand(sizes_).clone();
  added_ = added_.defined() ? added_ + here : here;
}

void GradMark::refuse(const char* operator_name) const {
  throw Error(error(Code::kInvalidArgument,
                    "{} on the gradient of '{}', which has gone to elixird: Options::clip_norm "
                    "clips gradients, outcome().grad_norm is their norm, "
                    "Optimizer::gradient(parameter) copies one, and a tensor hook "
                    "(parameter.register_hook) sees and changes them on their way",
                    operator_name, parameter_));
}

at::Tensor make_grad_mark(const at::Tensor& parameter, const std::string& name) {
  auto storage = c10::make_intrusive<GradMark>(
      name, parameter.sizes(), static_cast<size_t>(parameter.nbytes()), parameter.device());
  const c10::DispatchKey backend =
      c10::computeDispatchKey(parameter.scalar_type(), c10::kStrided, parameter.device());
  auto tensor = c10::make_intrusive<c10::TensorImpl>(
      c10::Storage(std::move(storage)), c10::DispatchKeySet({backend, kChunkKey}),
      c10::scalarTypeToTypeMeta(parameter.scalar_type()));
  tensor->set_sizes_contiguous(parameter.sizes());
  return at::Tensor(std::move(tensor));
}

GradMark* grad_mark_of(const at::Tensor& tensor) {
  const c10::TensorImpl* data = tensor.unsafeGetTensorImpl();
  if (!data->key_set().has(kChunkKey) || !data->has_storage()) return nullptr;
  return dynamic_cast<GradMark*>(data->unsafe_storage().unsafeGetStorageImpl());
}

}  // namespace elixir
