#include "client/tensors/checkpoint.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>

#include <memory>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/throw_error.h"
#include "client/regions/region_plan.h"
#include "client/tensors/parameter_reads.h"
#include "client/tensors/region_observer.h"
#include "client/tensors/region_state.h"
#include "client/tensors/second_run.h"
#include "client/tensors/sent_part.h"

namespace elixir {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

thread_local RegionObserver* region_observer = nullptr;
thread_local int region_depth = 0;
thread_local Keep keep_of_regions_inside = Keep::kNothing;
// While this thread has an observer.
thread_local std::unique_ptr<KnownRegions> profiled_regions;

class ObservedRegion {
 public:
  // `inputs` in forward.
  explicit ObservedRegion(const std::optional<RegionNumber>& number,
                          const std::vector<at::Tensor>* inputs = nullptr) {
    if (region_depth++ > 0 || region_observer == nullptr) return;
    region_observer->region_begins(
        number ? std::optional(number->value()) : std::nullopt,
        inputs != nullptr ? boundaries_of(*inputs) : std::vector<Boundary>());
  }
  ~ObservedRegion() {
    if (--region_depth == 0 && region_observer != nullptr) region_observer->region_ends();
  }
  ObservedRegion(const ObservedRegion&) = delete;
  ObservedRegion& operator=(const ObservedRegion&) = delete;
};

class ObservedSecondRun {
 public:
  ObservedSecondRun() {
    if (region_observer != nullptr) region_observer->second_run_begins();
  }
  ~ObservedSecondRun() {
    if (region_observer != nullptr) region_observer->second_run_ends(left_out);
  }
  ObservedSecondRun(const ObservedSecondRun&) = delete;
  ObservedSecondRun& operator=(const ObservedSecondRun&) = delete;

  uint32_t left_out = 0;
};

KnownRegions* known_regions() {
  return profiled_regions ? profiled_regions.get() : &KnownRegions::of_process();
}

bool observes_second_runs() { return stops_early() && keeps_interception(); }

// The graph of a region's only run.
struct KeptGraph {
  std::vector<at::Tensor> inputs;  // where it ends
  std::vector<std::optional<torch::autograd::Edge>> outputs = {};
  ParameterReads written = {};  // of the outputs: the program may write them
};

// What must be known to run the function again.
struct Region : torch::CustomClassHolder {
  Region(TensorsFunction body, size_t function_type, const std::vector<at::Tensor>& inputs)
      : function(std::move(body)),
        random(device_of(inputs)),
        autocast(device_of(inputs)),
        kind(kind_of_region(function_type, region_depth, inputs)) {
    if (region_depth == 0) number.emplace();
    RegionChoice choice;
    if (number) choice = choice_of_region(number->value());
    keep = number ? choice.keep : keep_of_regions_inside;
    if (number && keep != Keep::kAll) sent = SentPart(choice, number->value());
    if (keep == Keep::kProducts && observes_second_runs()) {
      products = StoredProducts(known_regions()->find(kind)->products_to_store());
    }
  }

  const TensorsFunction function;
  std::optional<RegionNumber> number;  // in its pass; empty: a region is around it
  const RandomState random;
  const AutocastState autocast;
  const uint64_t kind;
  Keep keep = Keep::kNothing;
  StoredProducts products{0};  // of the first run
  SentPart sent;
  std::optional<KeptGraph> graph;  // of a region that keeps everything, until it was walked
  std::vector<std::vector<int64_t>> shapes;  // of the outputs
  ParameterReads reads;                      // of the first run
};

std::vector<std::vector<int64_t>> shapes_of(const std::vector<at::Tensor>& tensors) {
  std::vector<std::vector<int64_t>> shapes;
  for (const at::Tensor& tensor : tensors) shapes.push_back(tensor.sizes().vec());
  return shapes;
}

std::vector<at::Tensor> detached(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : tensors) {
    result.push_back(tensor.detach().requires_grad_(tensor.requires_grad()));
  }
  return result;
}

// A graph of the function: where backward enters it, the gradients there, and where it ends. It
// holds no output.
struct Graph {
  std::vector<at::Tensor> inputs;
  torch::autograd::edge_list roots = {};
  variable_list grads = {};
};

[[noreturn]] void throw_other_shapes(const Region& region, const std::vector<at::Tensor>& outputs) {
  throw Error(error(Code::kInvalidArgument,
                    "a checkpointed function returned {} tensors in forward and {} in backward, or "
                    "others by shape: it must compute the same each time, from its inputs, "
                    "parameters and torch's random numbers",
                    region.shapes.size(), outputs.size()));
}

// Runs the function again. `second` observes its operators, if any. Each run has inputs of its own,
// since the function may leave hooks at them.
Graph run_again(const Region& region, const std::vector<at::Tensor>& inputs,
                const variable_list& grads, SecondRun* second = nullptr) {
  const RestoredRandom random(region.random, device_of(inputs));
  const RestoredAutocast autocast(region.autocast, device_of(inputs));
  const at::AutoGradMode grad_mode(true);
  std::optional<ObservedOperators> operators;
  if (second != nullptr) operators.emplace(second);
  Graph graph{.inputs = detached(inputs)};
  const std::vector<at::Tensor> outputs = region.function(graph.inputs);
  if (shapes_of(outputs) != region.shapes) {
    if (second != nullptr) second->returned_others();
    throw_other_shapes(region, outputs);
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].requires_grad() || !grads[i].defined()) continue;
    graph.roots.push_back(torch::autograd::impl::gradient_edge(outputs[i]));
    graph.grads.push_back(grads[i]);
  }
  return graph;
}

// Leaves out the operators whose results nobody needs.
Graph run_until_needed(Region& region, const std::vector<at::Tensor>& inputs,
                       const variable_list& grads, uint32_t* left_out) {
  SecondRun second(known_regions(), region.kind, &region.products, operator_observer());
  if (!second.observes()) return run_again(region, inputs, grads);
  try {
    Graph graph = run_again(region, inputs, grads, &second);
    if (second.ends()) {
      *left_out = second.will_be_left_out();
      return graph;
    }
  } catch (const std::exception& failure) {
    if (!second.fails(failure)) throw;
  }
  return run_again(region, inputs, grads);
}

// A profiler that wants shapes asks every tensor for its memory.
bool a_profiler_looks_at_tensors() {
  const std::optional<at::StepCallbacks> callbacks =
      at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION);
  return callbacks && callbacks->needs_inputs_;
}

Graph recompute(Region& region, const std::vector<at::Tensor>& inputs, const variable_list& grads) {
  if (region.number) note_region_run_again();
  ObservedSecondRun observed;
  if (observes_second_runs() && !a_profiler_looks_at_tensors()) {
    return run_until_needed(region, inputs, grads, &observed.left_out);
  }
  return run_again(region, inputs, grads);
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
  StoringRun storing(&region->products, operator_observer());
  std::optional<ObservedOperators> stored;
  if (region->products.wants_more()) stored.emplace(&storing);
  std::vector<at::Tensor> outputs = region->function(inputs);
  region->products.seal();
  check_unwritten(before, versions_of(inputs));
  region->shapes = shapes_of(outputs);
  return outputs;
}

class KeepingRegionsInside {
 public:
  KeepingRegionsInside() : before_(std::exchange(keep_of_regions_inside, Keep::kAll)) {}
  ~KeepingRegionsInside() { keep_of_regions_inside = before_; }
  KeepingRegionsInside(const KeepingRegionsInside&) = delete;
  KeepingRegionsInside& operator=(const KeepingRegionsInside&) = delete;

 private:
  const Keep before_;
};

// Runs the function with the graph that a second run would make. This graph stays apart from
// forward's graph. So parameters that several regions use get their gradients in one order,
// whatever the regions keep.
std::vector<at::Tensor> run_and_keep(const c10::intrusive_ptr<Region>& region,
                                     const std::vector<at::Tensor>& inputs) {
  const at::AutoGradMode gradients(true);
  const KeepingRegionsInside inside;
  KeptGraph graph{.inputs = detached(inputs)};
  std::vector<at::Tensor> outputs = run_first(region, graph.inputs);
  for (at::Tensor& output : outputs) {
    graph.outputs.emplace_back();
    if (!output.requires_grad()) continue;
    graph.outputs.back() = torch::autograd::impl::gradient_edge(output);
    output = output.detach();
    graph.written.note(output);
  }
  region->graph = std::move(graph);
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

// The kept graph if it is there and right, else that of a second run.
Graph graph_for_backward(Region& region, const std::vector<at::Tensor>& inputs,
                         const variable_list& grads) {
  const std::optional<KeptGraph> kept = std::exchange(region.graph, std::nullopt);
  if (!kept || kept->written.first_change()) return recompute(region, inputs, grads);
  ELIXIR_CHECK(kept->outputs.size() == grads.size(), "{} outputs are kept, and {} have gradients",
               kept->outputs.size(), grads.size());
  Graph graph{.inputs = kept->inputs};
  for (size_t i = 0; i < grads.size(); ++i) {
    if (!kept->outputs[i] || !grads[i].defined()) continue;
    graph.roots.push_back(*kept->outputs[i]);
    graph.grads.push_back(grads[i]);
  }
  return graph;
}

class Checkpoint : public torch::autograd::Function<Checkpoint> {
 public:
  // `anchor` requires gradients, so that the outputs do, whatever the inputs.
  static variable_list forward(AutogradContext* context, const c10::intrusive_ptr<Region>& region,
                               const at::Tensor& /*anchor*/, at::TensorList inputs) {
    context->saved_data["region"] = c10::IValue::make_capsule(region);
    // An output that the loss does not use gives parameters no gradient, not one of zeros.
    context->set_materialize_grads(false);
    variable_list saved = inputs.vec();
    const ObservedRegion observed(region->number, &saved);
    variable_list outputs =
        region->keep == Keep::kAll ? run_and_keep(region, saved) : run_first(region, saved);
    region->sent.send(&region->products, &saved);
    context->save_for_backward(std::move(saved));
    alias_what_others_hold(&outputs);
    return outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    check_backward_is_whole();
    const auto region =
        c10::static_intrusive_pointer_cast<Region>(context->saved_data["region"].toCapsule());
    variable_list inputs = context->get_saved_variables();
    check_parameters_are_the_same(*region);
    const ObservedRegion observed(region->number);
    region->sent.bring_back(&region->products, &inputs);
    const Graph graph = graph_for_backward(*region, inputs, grads);
    region->products.drop();
    if (region->number) region->number->end();
    if (!graph.roots.empty()) {
      torch::autograd::Engine::get_default_engine().execute(
          graph.roots, graph.grads, /*keep_graph=*/false, /*create_graph=*/false,
          /*accumulate_grad=*/true);
    }
    variable_list result = {at::Tensor(), at::Tensor()};  // of the region and the anchor
    for (const at::Tensor& input : graph.inputs) result.push_back(input.grad());
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
  if (observer == nullptr) profiled_regions.reset();
  if (observer != nullptr && !profiled_regions) profiled_regions = std::make_unique<KnownRegions>();
  return std::exchange(region_observer, observer);
}

namespace {
std::vector<at::Tensor> run_region(const TensorsFunction& function, size_t function_type,
                                   const std::vector<at::Tensor>& inputs) {
  if (!at::GradMode::is_enabled()) return function(inputs);
  check_defined(inputs);
  const auto region = c10::make_intrusive<Region>(function, function_type, inputs);
  const at::Tensor anchor = at::empty({0}).requires_grad_();
  return Checkpoint::apply(region, anchor, at::TensorList(inputs));
}
}  // namespace

std::vector<at::Tensor> checkpoint(const TensorsFunction& function,
                                   const std::vector<at::Tensor>& inputs) {
  return run_region(function, function.target_type().hash_code(), inputs);
}

at::Tensor checkpoint(const std::function<at::Tensor(const at::Tensor&)>& function,
                      const at::Tensor& input) {
  const TensorsFunction several = [function](const std::vector<at::Tensor>& inputs) {
    return std::vector<at::Tensor>{function(inputs[0])};
  };
  return run_region(several, function.target_type().hash_code(), {input})[0];
}

}  // namespace elixir
