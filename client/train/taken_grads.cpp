#include "client/train/taken_grads.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/throw_error.h"
#include "client/tensors/grad_mark.h"
#include "client/train/accumulator_lock.h"
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
      old_(marks_.size(), 0),
      zeroed_(marks_.size(), 0) {}

bool TakenGrads::is_marked(uint32_t index) const {
  const GradMark& mark = *grad_mark_of(marks_[index]);
  const at::Tensor& grad = parameters_[index].tensor.grad();
  return !mark.zeroed() && grad.defined() && (mark.summed() || holds_mark(index));
}

bool TakenGrads::holds_mark(uint32_t index) const {
  const at::Tensor& grad = parameters_[index].tensor.grad();
  // By its storage: zeroing leaves a detached one.
  return marks_[index].defined() && grad.defined() &&
         grad_mark_of(grad) == grad_mark_of(marks_[index]);
}

// zero_grad() takes all marks away: one of them says so for all.
std::optional<bool> TakenGrads::dropped_before(uint32_t index, const AccumulatorLock& its) const {
  ELIXIR_CHECK(its.held(), "parameter {}: its accumulator is another's", index);
  bool missing = gone_[index] != 0 && !is_marked(index);
  if (!missing && last_ != UINT32_MAX && last_ != index) {
    // Not waited for: who holds it may wait for what the caller holds.
    const AccumulatorLock accumulator(parameters_[last_].tensor, std::try_to_lock);
    if (!accumulator.held()) return std::nullopt;
    missing = !is_marked(last_);
  }
  if (!missing) return false;
  std::deque<AccumulatorLock> others;
  for (uint32_t i = 0; i < size(); ++i) {
    if (gone_[i] == 0 || i == index) continue;
    if (!others.emplace_back(parameters_[i].tensor, std::try_to_lock).held()) return std::nullopt;
  }
  return dropped();
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

at::Tensor TakenGrads::take(uint32_t index, const AccumulatorLock& its) {
  ELIXIR_CHECK(its.held(), "parameter {}: its accumulator is another's", index);
  at::Tensor& held = parameters_[index].tensor.mutable_grad();
  if (!held.defined()) return {};
  if (GradMark* const mark = grad_mark_of(held)) {
    if (holds_mark(index)) {
      if (old_[index] != 0 && !mark->zeroed()) added_to_old_ = true;
      return mark->take_added();
    }
    throw Error(error(Code::kInvalidArgument,
                      "the gradient of '{}' was put back after zero_grad(), or is another "
                      "parameter's: it has gone to elixird, and its values with it; "
                      "Optimizer::gradient(parameter) copies one",
                      parameters_[index].name));
  }
  at::Tensor grad = std::exchange(held, at::Tensor());
  watch(index, grad);
  // Where it stood in a mark's place, the mark stands there again.
  if (gone_[index] != 0 && grad_mark_of(marks_[index])->summed()) mark(index);
  return grad;
}

// Autograd adds to gradients in one buffer as it comes to them: what counts is the version after
// the last of them. Two in one place would have each other's values in torch.
void TakenGrads::watch(uint32_t index, const at::Tensor& grad) {
  if (!grad.has_storage() || grad.is_inference()) return;
  c10::StorageImpl* const storage = grad.storage().unsafeGetStorageImpl();
  if (grad.use_count() == 1 && grad.storage().use_count() == 1) return;
  const c10::VariableVersion& version = grad.unsafeGetTensorImpl()->version_counter();
  const auto [found, is_new] = watched_.try_emplace(
      storage,
      Watched{index,
              c10::weak_intrusive_ptr<c10::StorageImpl>(grad.storage().getWeakStorageImpl()),
              version,
              0,
              {}});
  Watched& watched = found->second;
  watched.old = false;
  watched.seen = version.current_version();
  if (!watched.begins.insert(grad.storage_offset()).second) watched.written = true;
}

void TakenGrads::check_unchanged() const {
  for (const auto& [storage, watched] : watched_) {
    if (!watched.written && watched.version.current_version() == watched.seen) continue;
    // After a step .grad has the memory still, in torch, but where zero_grad() was called.
    if (watched.old && !holds_mark(watched.index)) continue;
    throw Error(error(Code::kInvalidArgument,
                      "the gradient of '{}' was written through another tensor of the same memory "
                      "(a buffer that .grad is a view of, a handle kept by a hook, another "
                      "parameter's .grad) after it had gone to elixird in backward(): change it in "
                      "a tensor hook (register_hook) of the parameter, or assign .grad after "
                      "backward()",
                      parameters_[watched.index].name));
  }
}

void TakenGrads::mark(uint32_t index) {
  at::Tensor& mark = marks_[index];
  // A handle that a program kept of an earlier one must not become this one.
  const bool held = holds_mark(index);
  const bool same = held && parameters_[index].tensor.grad().is_same(mark);
  if (!mark.defined() || mark.use_count() > (same ? 2 : 1) ||
      mark.storage().use_count() > (held && !same ? 2 : 1)) {
    mark = make_grad_mark(parameters_[index].tensor, parameters_[index].name);
  }
  grad_mark_of(mark)->reset_mark();
  parameters_[index].tensor.mutable_grad() = mark;
  gone_[index] = 1;
  old_[index] = 0;
  last_ = index;
}

void TakenGrads::clear() {
  for (uint32_t i = 0; i < size(); ++i) {
    if (gone_[i] == 0 && old_[i] == 0) continue;
    if (holds_mark(i)) parameters_[i].tensor.mutable_grad().reset();
    grad_mark_of(marks_[i])->reset_mark();
    gone_[i] = old_[i] = 0;
  }
  watched_.clear();
  last_ = UINT32_MAX;
}

void TakenGrads::end_step() {
  for (uint32_t i = 0; i < size(); ++i) {
    if (gone_[i] != 0) old_[i] = 1;
    gone_[i] = 0;
    if (old_[i] != 0) grad_mark_of(marks_[i])->reset_mark();
  }
  for (auto at = watched_.begin(); at != watched_.end();) {
    Watched& watched = at->second;
    watched.begins.clear();
    const bool was_old = std::exchange(watched.old, true);
    const bool forget = watched.storage.expired() || (was_old && !holds_mark(watched.index));
    at = forget ? watched_.erase(at) : std::next(at);
  }
  last_ = UINT32_MAX;
  added_to_old_ = false;
  forget_zeroed();
}

bool TakenGrads::has_old() const {
  if (added_to_old_) return true;
  for (uint32_t i = 0; i < size(); ++i) {
    if (old_[i] != 0 && holds_mark(i) && !grad_mark_of(marks_[i])->zeroed()) return true;
  }
  return false;
}

void TakenGrads::note_zeroed() {
  for (uint32_t i = 0; i < size(); ++i) {
    const bool marked = (gone_[i] != 0 || old_[i] != 0) && holds_mark(i);
    if (marked && grad_mark_of(marks_[i])->zeroed()) zeroed_[i] = 1;
  }
}

void TakenGrads::forget_zeroed() { std::fill(zeroed_.begin(), zeroed_.end(), 0); }

}  // namespace elixir
