#include "client/tensors/checkpoint.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Generator.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>

#include <array>
#include <mutex>
#include <optional>
#include <utility>

#include "base/throw_error.h"
#include "client/tensors/parameter_reads.h"
#include "client/tensors/region_observer.h"

namespace elixir {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

thread_local RegionObserver* region_observer = nullptr;
thread_local int region_depth = 0;

class ObservedRegion {
 public:
  ObservedRegion() {
    if (region_depth++ == 0 && region_observer != nullptr) region_observer->region_begins();
  }
  ~ObservedRegion() {
    if (--region_depth == 0 && region_observer != nullptr) region_observer->region_ends();
  }
  ObservedRegion(const ObservedRegion&) = delete;
  ObservedRegion& operator=(const ObservedRegion&) = delete;
};

// The states of torch's default generators: of the CPU and of one other device.
class RandomState {
 public:
  explicit RandomState(c10::Device device) : device_(device) {
    cpu_ = state_of(at::kCPU);
    if (!device_.is_cpu() && !device_.is_meta()) own_ = state_of(device_);
  }
  void restore() const {
    set_state(at::kCPU, cpu_);
    if (own_.defined()) set_state(device_, own_);
  }

 private:
  static at::Tensor state_of(c10::Device device) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    return generator.get_state();
  }
  static void set_state(c10::Device device, const at::Tensor& state) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }

  c10::Device device_;
  at::Tensor cpu_, own_;
};

// Sets the random state, and puts that of before back.
class RestoredRandom {
 public:
  RestoredRandom(const RandomState& then, c10::Device device) : now_(device) { then.restore(); }
  ~RestoredRandom() { now_.restore(); }
  RestoredRandom(const RestoredRandom&) = delete;
  RestoredRandom& operator=(const RestoredRandom&) = delete;

 private:
  const RandomState now_;
};

// Autocast's switches of this thread, for the CPU and one other device.
class AutocastState {
 public:
  explicit AutocastState(c10::Device device)
      : types_{at::kCPU, device.is_meta() ? at::kCPU : device.type()},
        cache_(at::autocast::is_autocast_cache_enabled()) {
    for (size_t i = 0; i < types_.size(); ++i) {
      enabled_[i] = at::autocast::is_autocast_enabled(types_[i]);
      dtype_[i] = at::autocast::get_autocast_dtype(types_[i]);
    }
  }
  void restore() const {
    for (size_t i = 0; i < types_.size(); ++i) {
      at::autocast::set_autocast_enabled(types_[i], enabled_[i]);
      at::autocast::set_autocast_dtype(types_[i], dtype_[i]);
    }
    at::autocast::set_autocast_cache_enabled(cache_);
  }
  bool enabled() const { return enabled_[0] || enabled_[1]; }

 private:
  std::array<at::DeviceType, 2> types_;
  std::array<bool, 2> enabled_{};
  std::array<at::ScalarType, 2> dtype_{};
  bool cache_;
};

// Runs as the region first did; afterwards this thread's autocast is as it was before. Without the
// cache of cast weights: its copies have a graph, which belongs to forward or to the second run.
class RestoredAutocast {
 public:
  RestoredAutocast(const AutocastState& then, c10::Device device) : now_(device) {
    then.restore();
    if (then.enabled()) at::autocast::set_autocast_cache_enabled(false);
  }
  ~RestoredAutocast() { now_.restore(); }
  RestoredAutocast(const RestoredAutocast&) = delete;
  RestoredAutocast& operator=(const RestoredAutocast&) = delete;

 private:
  const AutocastState now_;
};

c10::Device device_of(const std::vector<at::Tensor>& inputs) {
  return inputs.empty() ? c10::Device(at::kCPU) : inputs[0].device();
}

// What must be known to run the function again.
struct Region : torch::CustomClassHolder {
  Region(TensorsFunction body, const std::vector<at::Tensor>& inputs)
      : function(std::move(body)), random(device_of(inputs)), autocast(device_of(inputs)) {}

  const TensorsFunction function;
  const RandomState random;
  const AutocastState autocast;
  std::vector<std::vector<int64_t>> shapes;  // of the outputs
  ParameterReads reads;                      // of the first run
};

std::vector<std::vector<int64_t>> shapes_of(const std::vector<at::Tensor>& tensors) {
  std::vector<std::vector<int64_t>> shapes;
  for (const at::Tensor& tensor : tensors) shapes.push_back(tensor.sizes().vec());
  return shapes;
}

// The outputs again, with a graph that ends at `inputs`.
std::vector<at::Tensor> recompute(const Region& region, const std::vector<at::Tensor>& inputs) {
  const RestoredRandom random(region.random, device_of(inputs));
  const RestoredAutocast autocast(region.autocast, device_of(inputs));
  const at::AutoGradMode grad_mode(true);
  std::vector<at::Tensor> outputs = region.function(inputs);
  if (shapes_of(outputs) == region.shapes) return outputs;
  throw Error(error(Code::kInvalidArgument,
                    "a checkpointed function returned {} tensors in forward and {} in backward, or "
                    "others by shape: it must compute the same each time, from its inputs, "
                    "parameters and torch's random numbers",
                    region.shapes.size(), outputs.size()));
}

std::vector<uint32_t> versions_of(const std::vector<at::Tensor>& tensors) {
  std::vector<uint32_t> versions;
  for (const at::Tensor& tensor : tensors) {
    const c10::VariableVersion& counter = tensor.unsafeGetTensorImpl()->version_counter();
    versions.push_back(counter.enabled() ? counter.current_version() : 0);
  }
  return versions;
}

// The second run would find what the first has written, and write it again.
void check_unwritten(const std::vector<uint32_t>& before, const std::vector<uint32_t>& after) {
  for (size_t i = 0; i < before.size(); ++i) {
    if (before[i] == after[i]) continue;
    throw Error(error(Code::kInvalidArgument,
                      "the function of elixir::checkpoint() writes inputs[{}] in place, and would "
                      "do so twice, since backward runs it again: let it work on a copy, "
                      "inputs[{}].clone()",
                      i, i));
  }
}

std::vector<at::Tensor> run_first(const c10::intrusive_ptr<Region>& region,
                                  const std::vector<at::Tensor>& inputs) {
  const RestoredAutocast autocast(region->autocast, device_of(inputs));
  const NotedReads noted(&region->reads);
  const std::vector<uint32_t> before = versions_of(inputs);
  std::vector<at::Tensor> outputs = region->function(inputs);
  check_unwritten(before, versions_of(inputs));
  region->shapes = shapes_of(outputs);
  return outputs;
}

// The region becomes the history of what it returns. What others hold, too (a parameter, an input,
// a buffer), keeps its own: an alias goes out in its place.
void alias_what_others_hold(variable_list* outputs) {
  for (at::Tensor& output : *outputs) {
    if (output.defined() && output.use_count() > 1) output = output.detach();
  }
}

void check_backward_is_whole() {
  if (!torch::autograd::Engine::get_default_engine().is_checkpoint_valid()) {
    throw Error(error(Code::kInvalidArgument,
                      "torch::autograd::grad(), or backward() with inputs, through "
                      "elixir::checkpoint(): the region's own backward would give gradients to "
                      "parameters that were not asked for; call backward() without inputs, or "
                      "run the region without elixir::checkpoint()"));
  }
  if (at::GradMode::is_enabled()) {
    throw Error(error(Code::kInvalidArgument,
                      "backward() with create_graph through elixir::checkpoint(): the gradients "
                      "that the region gives have no graph, so a loss that is computed from them "
                      "(a gradient penalty) would have no derivative; call backward() without "
                      "create_graph, or run the region without elixir::checkpoint()"));
  }
}

void check_parameters_are_the_same(const Region& region) {
  const std::optional<ParameterReads::Change> change = region.reads.first_change();
  if (!change) return;
  throw Error(error(Code::kInvalidArgument,
                    "one of the variables needed for gradient computation has been modified by an "
                    "inplace operation: a parameter that a function of elixir::checkpoint() reads "
                    "is at version {}; expected version {} instead. step() or set_parameter() came "
                    "between the region's forward and its backward, which would run it again with "
                    "other weights: call backward() before, or run forward again after it",
                    change->is, change->was));
}

class Checkpoint : public torch::autograd::Function<Checkpoint> {
 public:
  // `anchor` requires gradients, so that the outputs do, whatever the inputs.
  static variable_list forward(AutogradContext* context, const c10::intrusive_ptr<Region>& region,
                               const at::Tensor& /*anchor*/, at::TensorList inputs) {
    context->saved_data["region"] = c10::IValue::make_capsule(region);
    context->save_for_backward(inputs.vec());
    // An output that the loss does not use gives parameters no gradient, not one of zeros.
    context->set_materialize_grads(false);
    const ObservedRegion observed;
    variable_list outputs = run_first(region, inputs.vec());
    alias_what_others_hold(&outputs);
    return outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    check_backward_is_whole();
    const auto region =
        c10::static_intrusive_pointer_cast<Region>(context->saved_data["region"].toCapsule());
    variable_list inputs;
    for (const at::Tensor& saved : context->get_saved_variables()) {
      inputs.push_back(saved.detach().requires_grad_(saved.requires_grad()));
    }
    check_parameters_are_the_same(*region);
    const ObservedRegion observed;
    const std::vector<at::Tensor> outputs = recompute(*region, inputs);
    variable_list roots, root_grads;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].requires_grad() || !grads[i].defined()) continue;
      roots.push_back(outputs[i]);
      root_grads.push_back(grads[i]);
    }
    if (!roots.empty()) torch::autograd::backward(roots, root_grads);
    variable_list result = {at::Tensor(), at::Tensor()};  // of the region and the anchor
    for (const at::Tensor& input : inputs) result.push_back(input.grad());
    return result;
  }
};

void check_defined(const std::vector<at::Tensor>& inputs) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined()) continue;
    throw Error(error(Code::kInvalidArgument,
                      "inputs[{}] of elixir::checkpoint() is an undefined tensor: leave it out, "
                      "and make the function work without it",
                      i));
  }
}

}  // namespace

bool in_checkpointed_region() { return region_depth > 0; }

RegionObserver* observe_regions(RegionObserver* observer) {
  return std::exchange(region_observer, observer);
}

std::vector<at::Tensor> checkpoint(const TensorsFunction& function,
                                   const std::vector<at::Tensor>& inputs) {
  if (!at::GradMode::is_enabled()) return function(inputs);
  check_defined(inputs);
  const auto region = c10::make_intrusive<Region>(function, inputs);
  const at::Tensor anchor = at::empty({0}).requires_grad_();
  return Checkpoint::apply(region, anchor, at::TensorList(inputs));
}

at::Tensor checkpoint(const std::function<at::Tensor(const at::Tensor&)>& function,
                      const at::Tensor& input) {
  const TensorsFunction several = [function](const std::vector<at::Tensor>& inputs) {
    return std::vector<at::Tensor>{function(inputs[0])};
  };
  return checkpoint(several, {input})[0];
}

}  // namespace elixir
