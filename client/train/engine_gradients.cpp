// Gradients between autograd and their way down: hooks on the parameters, and what .grad means.

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <optional>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/throw_error.h"
#include "client/tensors/resolved.h"
#include "client/train/accumulator_lock.h"
#include "client/train/engine.h"

namespace elixir {

// Runs when autograd has summed up a parameter's gradient.
struct Engine::GradHook final : torch::autograd::PostAccumulateGradHook {
  GradHook(std::shared_ptr<ChunkBinding> owner, uint32_t parameter,
           std::unique_ptr<PostAccumulateGradHook> found)
      : binding(std::move(owner)), index(parameter), before(std::move(found)) {}

  void operator()(const torch::autograd::Variable& tensor) override {
    if (before) (*before)(tensor);
    const SourceUse source(binding);
    if (!source) return;  // the optimizer is gone: the gradient stays torch's
    static_cast<Engine*>(source.get())->take_gradient(index);
  }

  const std::shared_ptr<ChunkBinding> binding;
  const uint32_t index;
  std::unique_ptr<PostAccumulateGradHook> before;  // the program's own
};

void Engine::hook_gradients() {
  taken_ = std::make_unique<TakenGrads>(parameters_);
  for (uint32_t i = 0; i < n_trained(); ++i) {
    const at::Tensor& tensor = parameters_[i].tensor;
    // One of before counts, as in torch, unless zero_grad() comes.
    const at::Tensor grad = std::exchange(tensor.mutable_grad(), at::Tensor());
    if (grad.defined() && !grad.is_meta() && grad.sizes() == tensor.sizes()) {
      tensor.mutable_grad() = grad.detach().to(tensor.device(), dtype_);
    }
    torch::autograd::impl::set_post_acc_grad_hooks(
        tensor, std::make_unique<GradHook>(
                    binding_, i, std::move(torch::autograd::impl::post_acc_grad_hooks(tensor))));
  }
  for (size_t i = n_trained(); i < parameters_.size(); ++i) {  // frozen
    parameters_[i].tensor.mutable_grad().reset();
  }
}

// The program's own hooks are there again.
void Engine::unhook_gradients() {
  for (uint32_t i = 0; i < n_trained(); ++i) {
    const at::Tensor& tensor = parameters_[i].tensor;
    tensor.mutable_grad().reset();
    auto* const hook =
        dynamic_cast<GradHook*>(torch::autograd::impl::post_acc_grad_hooks(tensor).get());
    if (hook == nullptr) continue;
    torch::autograd::impl::set_post_acc_grad_hooks(tensor, std::move(hook->before));
  }
}

bool Engine::has_its_view(uint32_t parameter) const {
  const at::Tensor& tensor = parameters_[parameter].tensor;
  const shm::ParameterPlace& place = run_plan_.chunks.places[parameter];
  return lies_in(tensor, *storages_[place.chunk]) &&
         tensor.storage_offset() == static_cast<int64_t>(place.offset) &&
         tensor.sizes() == sizes_[parameter] && tensor.is_contiguous() &&
         tensor.scalar_type() == dtype_;
}

namespace {

Error other_data(const ModuleParameter& parameter) {
  return Error(
      error(Code::kInvalidArgument,
            "parameter '{}' was given other data after the optimizer was built (module.to(), "
            "set_data or resize_token_embeddings() does that): move, cast or resize the module "
            "before, and give it other values with Optimizer::set_parameter",
            parameter.name));
}

}  // namespace

// The module is as it was when the optimizer was built.
void Engine::check_views() const {
  for (uint32_t i = 0; i < parameters_.size(); ++i) {
    const ModuleParameter& parameter = parameters_[i];
    if (!has_its_view(i)) throw other_data(parameter);
    if (parameter.frozen && parameter.tensor.requires_grad()) {
      throw Error(error(Code::kInvalidArgument,
                        "parameter '{}' was frozen when the optimizer was built, and has no states "
                        "to be trained with: let it require gradients then, and freeze it "
                        "afterwards, which costs nothing",
                        parameter.name));
    }
    if (parameter.frozen && parameter.tensor.grad().defined()) {
      throw Error(error(Code::kInvalidArgument,
                        "parameter '{}' was given a gradient, and was frozen when the optimizer "
                        "was built: it has no states to be trained with",
                        parameter.name));
    }
    if (parameter.frozen) continue;
    const auto* const hook = dynamic_cast<const GradHook*>(
        torch::autograd::impl::post_acc_grad_hooks(parameter.tensor).get());
    if (hook != nullptr && hook->binding == binding_) continue;
    throw Error(error(Code::kInvalidArgument,
                      "a post-accumulate-grad hook was set on parameter '{}' after the optimizer "
                      "was built, in the place of Elixir's, so its gradients did not arrive: set "
                      "it before, or use a tensor hook (register_hook)",
                      parameter.name));
  }
}

// Out of .grad, where a mark is there again before another thread's pass adds to it. Undefined:
// that thread's hook has taken it. False: it may be tried again.
bool Engine::take_out(uint32_t parameter, at::Tensor* grad) {
  const AccumulatorLock accumulator(parameters_[parameter].tensor);
  const MutexLock lock(mutex_);
  const std::optional<bool> dropped = taken_->dropped_before(parameter, accumulator);
  if (!dropped) return false;
  if (!*dropped) require_none_lost();
  // Whatever comes: it must not be added again by the next backward.
  *grad = taken_->take(parameter, accumulator);
  if (*dropped) drop_gradients();
  if (grad->defined()) taken_->mark(parameter);
  return true;
}

void Engine::take_gradient(uint32_t parameter) {
  throw_in_child("backward()");
  at::Tensor grad;
  while (!take_out(parameter, &grad)) std::this_thread::yield();
  if (!grad.defined()) return;
  try {
    // Not under the mutex: one that shares memory with a parameter is gathered and copied.
    grad = checked(parameter, grad);
    const MutexLock lock(mutex_);
    take(parameter, grad);
  } catch (...) {
    const MutexLock lock(mutex_);
    lost_gradient_ = true;
    throw;
  }
}

// What a program that has caught the error could not see.
void Engine::require_none_lost() const {
  if (!lost_gradient_) return;
  throw Error(error(Code::kInvalidArgument,
                    "a gradient of step {} was lost by an earlier error in backward() or step(): "
                    "drop what has come of that step with Optimizer::zero_grad(), and run "
                    "backward() again",
                    control_.step() + 1));
}

void Engine::take(uint32_t parameter, const at::Tensor& grad) {
  ELIXIR_CHECK(parameter < n_trained(), "parameter {} of {}", parameter, n_trained());
  throw_if_failed();
  const StepMeter::Stall stall(meter_, grad_offload_->begins_micro_step(parameter)
                                           ? StepMeter::Waits::kOperators
                                           : StepMeter::Waits::kHost);
  open_step();
  session_->say_gradient(control_.step() + 1, parameter, parameters_[parameter].group);
  if (keeps_gradients_) keep(parameter, grad);
  grad_offload_->take(parameter, grad, control_.step() + 1);
}

// Autograd's own fits; what a program put into .grad, or added there, may be anything.
at::Tensor Engine::checked(uint32_t index, const at::Tensor& grad) const {
  const ModuleParameter& parameter = parameters_[index];
  if (grad.sizes() != sizes_[index] || grad.device() != storages_.front()->device()) {
    if (!has_its_view(index)) throw other_data(parameter);
    throw Error(error(Code::kInvalidArgument,
                      "the gradient that parameter '{}' was given has shape {} on {}; it must "
                      "have shape {} on {}",
                      parameter.name, c10::str(grad.sizes()), grad.device().str(),
                      c10::str(parameter.tensor.sizes()), parameter.tensor.device().str()));
  }
  const bool readable = grad.layout() == at::kStrided || grad.layout() == at::kSparse;
  if (!readable || grad.is_complex()) {
    throw Error(
        error(Code::kInvalidArgument,
              "the gradient that parameter '{}' was given is {} and {}: give it a real one, "
              "dense (to_dense()) or sparse in coordinates",
              parameter.name, c10::toString(grad.scalar_type()), c10::str(grad.layout())));
  }
  if (chunk_storage_of(grad) != nullptr) return resolved(grad.detach().clone());
  const at::Tensor here = grad.scalar_type() == dtype_ ? grad : grad.detach().to(dtype_);
  return here.layout() == at::kStrided ? resolved(here) : here;
}

at::Tensor Engine::take_assigned(uint32_t parameter) {
  const AccumulatorLock accumulator(parameters_[parameter].tensor);
  const MutexLock lock(mutex_);
  return taken_->take(parameter, accumulator);
}

// As torch::optim takes whatever .grad holds at step(). Not under the mutex: what shares memory
// with a parameter is gathered and copied.
Engine::Assigned Engine::assigned_gradients() {
  Assigned assigned;
  {
    const MutexLock lock(mutex_);
    assigned.dropped = taken_->dropped();
    if (!assigned.dropped) taken_->check_unchanged();
  }
  bool out = false;  // of .grad
  try {
    for (uint32_t i = 0; i < n_trained(); ++i) {
      const at::Tensor grad = take_assigned(i);
      if (!grad.defined()) continue;
      out = true;
      assigned.gradients.emplace_back(i, checked(i, grad).detach());
    }
  } catch (...) {
    const MutexLock lock(mutex_);
    lost_gradient_ = lost_gradient_ || out;
    throw;
  }
  return assigned;
}

// Zeros for what was zeroed in this step and has had no gradient since.
void Engine::take_zeroed() {
  const auto groups = session_->grad_groups(control_.step() + 1);
  for (uint32_t i = 0; i < n_trained(); ++i) {
    if (!taken_->was_zeroed(i) || groups[i].load(std::memory_order_relaxed) != shm::kNoGradient) {
      continue;
    }
    const at::Tensor& tensor = parameters_[i].tensor;
    take(i, at::zeros(tensor.sizes(), at::TensorOptions().dtype(dtype_).device(tensor.device())));
    taken_->mark(i);
  }
}

// With torch they would make the next step, or be added to.
void Engine::warn_of_old_gradients() {
  if (said_old_gradients_ || !taken_->has_old()) return;
  said_old_gradients_ = true;
  log_warn("old_gradients",
           "step={} why=\"zero_grad() was not called since the last step\" effect=\"gradients of "
           "that step are dropped, where torch keeps them and adds\" remedy=\"call zero_grad() "
           "before each step's first backward()\"",
           control_.step() + 1);
}

// Chunks are updated while others' gradients come, before nodes could tell one another which
// parameters have one.
void Engine::check_all_have_gradients() const {
  if (!control_.immediate() || ranks_.group == nullptr) return;
  const auto groups = session_->grad_groups(control_.step() + 1);
  for (uint32_t i = 0; i < groups.size(); ++i) {
    if (groups[i].load(std::memory_order_relaxed) != shm::kNoGradient) continue;
    throw Error(error(Code::kInvalidArgument,
                      "parameter '{}' has no gradient in step {}: immediate updates with the "
                      "collective exchange need one of every parameter on every rank; use deferred "
                      "updates (--update deferred), which leave it as it is",
                      parameters_[i].name, control_.step() + 1));
  }
}

void Engine::drop_gradients() {
  grad_offload_->discard();
  taken_->note_zeroed();
  session_->forget_gradients(control_.step() + 1);
  kept_grads_.clear();
  taken_->clear();
  lost_gradient_ = false;
}

void Engine::zero_grad() {
  throw_in_child("zero_grad()");
  const MutexLock lock(mutex_);
  for (uint32_t i = 0; i < n_trained(); ++i) parameters_[i].tensor.mutable_grad().reset();
  drop_gradients();
  taken_->forget_zeroed();
}

}  // namespace elixir
