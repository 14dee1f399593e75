#include "client/train/taken_grads.h"

#include <algorithm>
#include <utility>

#include "base/throw_error.h"
#include "client/tensors/chunk_storage.h"
#include "client/tensors/grad_mark.h"
#include "client/train/module_parameters.h"

namespace elixir {
namespace {

size_t trained(const std::vector<ModuleParameter>& parameters) {
  const auto frozen = [](const ModuleParameter& parameter) { return parameter.frozen; };
  return static_cast<size_t>(std::find_if(parameters.begin(), parameters.end(), frozen) -
                             parameters.begin());
}

}  // namespace

TakenGrads::TakenGrads(const std::vector<ModuleParameter>& parameters)
    : parameters_(parameters),
      marks_(trained(parameters)),
      gone_(marks_.size(), 0),
      zeroed_(marks_.size(), 0) {}

bool TakenGrads::is_marked(uint32_t index) const {
  const GradMark& mark = *grad_mark_of(marks_[index]);
  const at::Tensor& grad = parameters_[index].tensor.grad();
  return !mark.zeroed() && grad.defined() && (mark.summed() || grad.is_same(marks_[index]));
}

// zero_grad() takes all marks away: one of them says so for all.
bool TakenGrads::dropped_before(uint32_t index) const {
  const bool missing =
      (last_ != UINT32_MAX && !is_marked(last_)) || (gone_[index] != 0 && !is_marked(index));
  return missing && dropped();
}

bool TakenGrads::dropped() const {
  uint32_t there = UINT32_MAX, missing = UINT32_MAX;
  for (uint32_t i = 0; i < size(); ++i) {
    if (gone_[i] != 0) (is_marked(i) ? there : missing) = i;
  }
  if (missing == UINT32_MAX || there == UINT32_MAX) return missing != UINT32_MAX;
  throw Error(error(Code::kInvalidArgument,
                    "the gradient of '{}' was reset or replaced after it had gone to elixird, and "
                    "that of '{}' was not: drop the gradients of all parameters together, with "
                    "zero_grad() of the optimizer or of the whole module",
                    parameters_[missing].name, parameters_[there].name));
}

at::Tensor TakenGrads::take(uint32_t index) {
  at::Tensor& held = parameters_[index].tensor.mutable_grad();
  if (!held.defined()) return {};
  if (GradMark* const mark = grad_mark_of(held)) return mark->take_added();
  at::Tensor grad = std::exchange(held, at::Tensor());
  // Where it stood in a mark's place, the mark stands there again.
  if (gone_[index] != 0 && grad_mark_of(marks_[index])->summed()) mark(index);
  // One that shares memory with a parameter must be gathered to be read.
  return chunk_storage_of(grad) == nullptr ? grad : grad.detach().clone();
}

void TakenGrads::mark(uint32_t index) {
  at::Tensor& mark = marks_[index];
  if (!mark.defined()) mark = make_grad_mark(parameters_[index].tensor, parameters_[index].name);
  grad_mark_of(mark)->reset_mark();
  parameters_[index].tensor.mutable_grad() = mark;
  gone_[index] = 1;
  last_ = index;
}

void TakenGrads::clear() {
  for (uint32_t i = 0; i < size(); ++i) {
    if (gone_[i] == 0) continue;
    const at::Tensor& grad = parameters_[i].tensor.grad();
    if (grad.defined() && grad_mark_of(grad) != nullptr)
      parameters_[i].tensor.mutable_grad().reset();
    grad_mark_of(marks_[i])->reset_mark();
    gone_[i] = 0;
  }
  last_ = UINT32_MAX;
}

void TakenGrads::note_zeroed() {
  for (uint32_t i = 0; i < size(); ++i) {
    if (gone_[i] != 0 && grad_mark_of(marks_[i])->zeroed()) zeroed_[i] = 1;
  }
}

void TakenGrads::forget_zeroed() { std::fill(zeroed_.begin(), zeroed_.end(), 0); }

}  // namespace elixir
