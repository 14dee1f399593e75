#include "client/tensors/sent_part.h"

#include <torch/csrc/autograd/graph_task.h>

#include <optional>
#include <utility>

#include "base/throw_error.h"

namespace elixir {
namespace {

bool is_boundary(const at::Tensor& input) {
  return input.requires_grad() && !input.is_leaf() && can_be_sent(input);
}

// The inputs of this thread's regions, from region 0 on.
class SeenInputs {
 public:
  void begin(uint32_t number) {
    if (number == 0) seen_.clear();
  }
  // Whether it is the first time.
  bool add(const at::Tensor& input) {
    const c10::StorageImpl* const storage = input.storage().unsafeGetStorageImpl();
    for (const auto& one : seen_) {
      if (one._unsafe_get_target() == storage) return false;
    }
    seen_.emplace_back(input.storage().getWeakStorageImpl());
    return true;
  }

 private:
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> seen_;
};

thread_local SeenInputs seen_inputs;

}  // namespace

std::vector<Boundary> boundaries_of(const std::vector<at::Tensor>& inputs) {
  std::vector<Boundary> found;
  for (const at::Tensor& input : inputs) {
    if (!is_boundary(input)) continue;
    found.push_back({input.storage().unsafeGetStorageImpl(),
                     static_cast<uint64_t>(input.numel()) * input.element_size()});
  }
  return found;
}

void SentPart::send(StoredProducts* products, std::vector<at::Tensor>* saved) {
  if (host_ == nullptr) return;
  seen_inputs.begin(number_);
  if (choice_.last_sender) return host_->settle();
  const auto takes = [&](const at::Tensor& tensor) { return host_->takes(tensor); };
  std::vector<at::Tensor> tensors;
  if (choice_.sends_products) tensors = products->take_out(takes);
  const size_t n_products = tensors.size();
  std::vector<size_t> inputs;
  for (size_t i = 0; i < saved->size() && choice_.sends_boundary; ++i) {
    const at::Tensor& input = (*saved)[i];
    if (!is_boundary(input) || !seen_inputs.add(input) || !takes(input)) continue;
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
  sent_ = std::move(sent);
  n_products_ = n_products;
  inputs_ = std::move(inputs);
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
  if (sent_ == nullptr) {
    if (host_ != nullptr && choice_.last_sender) host_->bring_next();
    return;
  }
  check_inputs();
  std::vector<at::Tensor> tensors = sent_->get();
  for (size_t i = 0; i < inputs_.size(); ++i) {
    (*saved)[inputs_[i]] = tensors[n_products_ + i].requires_grad_();
  }
  tensors.resize(n_products_);
  products->put_back(tensors);
  if (!torch::autograd::get_current_graph_task_keep_graph()) sent_.reset();
}

}  // namespace elixir
