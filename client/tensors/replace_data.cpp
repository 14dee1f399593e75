#include "client/tensors/replace_data.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <mutex>

namespace elixir {

void replace_data(const at::Tensor& tensor, const at::Tensor& data) {
  if (auto* const autograd = torch::autograd::impl::get_autograd_meta(tensor)) {
    // It remembers the type and device of gradients; autograd makes another when it is needed.
    const std::lock_guard lock(autograd->mutex_);
    autograd->grad_accumulator_.reset();
  }
  tensor.unsafeGetTensorImpl()->shallow_copy_from(data.getIntrusivePtr());
}

}  // namespace elixir
