#include "client/tensors/sent_part.h"

#include <ATen/Functions.h>

#include <optional>
#include <utility>

#include "base/throw_error.h"

namespace elixir {
namespace {

bool is_boundary(const at::Tensor& input) { return input.requires_grad() && !input.is_leaf(); }

at::Tensor holder_of(std::shared_ptr<SentTensors> sent) {
  static std::byte nothing{};
  return at::from_blob(
      &nothing, {1}, [sent = std::move(sent)](void*) mutable { sent.reset(); },
      at::TensorOptions().dtype(at::kByte));
}

}  // namespace

uint64_t boundary_bytes(const std::vector<at::Tensor>& inputs) {
  uint64_t bytes = 0;
  for (const at::Tensor& input : inputs) {
    if (!is_boundary(input) || !input.is_non_overlapping_and_dense()) continue;
    bytes += static_cast<uint64_t>(input.numel()) * input.element_size();
  }
  return bytes;
}

void SentPart::send(StoredProducts* products, std::vector<at::Tensor>* saved) {
  if (host_ == nullptr) return;
  if (choice_.last_sender) return host_->settle();
  const auto takes = [&](const at::Tensor& tensor) { return host_->takes(tensor); };
  std::vector<at::Tensor> tensors;
  if (choice_.sends_products) tensors = products->take_out(takes);
  const size_t n_products = tensors.size();
  std::vector<size_t> inputs;
  for (size_t i = 0; i < saved->size() && choice_.sends_boundary; ++i) {
    if (!is_boundary((*saved)[i]) || !takes((*saved)[i])) continue;
    inputs.push_back(i);
    tensors.push_back((*saved)[i]);
  }
  if (tensors.empty()) return;
  std::shared_ptr<SentTensors> sent = host_->put(tensors);
  if (sent == nullptr) {
    tensors.resize(n_products);
    return products->put_back(tensors);
  }
  for (const size_t i : inputs) {
    input_versions_.note((*saved)[i]);
    (*saved)[i].reset();
  }
  sent_ = sent;
  n_products_ = n_products;
  inputs_ = std::move(inputs);
  saved->push_back(holder_of(std::move(sent)));
}

void SentPart::check_inputs() const {
  const std::optional<ParameterReads::Change> change = input_versions_.first_change();
  if (!change) return;
  throw Error(error(Code::kInvalidArgument,
                    "one of the variables needed for gradient computation has been modified by an "
                    "inplace operation: an input of a function of elixir::checkpoint() is at "
                    "version {}; expected version {} instead",
                    change->is, change->was));
}

void SentPart::bring_back(StoredProducts* products, std::vector<at::Tensor>* saved) {
  const std::shared_ptr<SentTensors> sent = sent_.lock();
  if (sent == nullptr) {
    if (host_ != nullptr && choice_.last_sender) host_->bring_next();
    return;
  }
  check_inputs();
  saved->pop_back();
  std::vector<at::Tensor> tensors = sent->get();
  for (size_t i = 0; i < inputs_.size(); ++i) {
    (*saved)[inputs_[i]] = tensors[n_products_ + i].requires_grad_();
  }
  tensors.resize(n_products_);
  products->put_back(tensors);
}

}  // namespace elixir
