#include "client/profile/profile.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <unordered_set>

#include "base/log.h"
#include "base/throw_error.h"
#include "client/profile/counted_memory.h"
#include "client/profile/meta_kernels.h"
#include "client/profile/step_recorder.h"
#include "client/regions/region_plan.h"
#include "client/tensors/dispatch_key.h"
#include "client/tensors/known_regions.h"
#include "client/tensors/meta_init.h"
#include "client/tensors/region_observer.h"
#include "client/tensors/replace_data.h"
#include "client/tensors/scalar_type.h"

namespace elixir {
namespace {

std::vector<NamedTensor> parameters_of(const ModelTensors& model) {
  std::vector<NamedTensor> result;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const NamedTensor& item : model.parameters) {
    if (!seen.insert(item.tensor.unsafeGetTensorImpl()).second) continue;
    // Others are in no chunk: client/train/module_parameters.
    const bool in_chunk = item.tensor.numel() > 0 && chunks_take(item.tensor.scalar_type());
    if (in_chunk) result.push_back(item);
  }
  return result;
}

// What stands for a parameter or a buffer during the step: nothing on the meta device, the values
// on another.
at::Tensor standing_for(const at::Tensor& tensor, at::Device device, at::ScalarType dtype) {
  if (!device.is_meta()) return materialise(tensor, device).to(dtype).contiguous();
  return at::empty_strided(tensor.sizes(), tensor.strides(),
                           tensor.options().dtype(dtype).device(at::kMeta).requires_grad(false));
}

at::ScalarType dtype_of(const at::Tensor& buffer, std::optional<ComputeType> buffer_dtype) {
  const bool own = !buffer_dtype || !chunks_take(buffer.scalar_type());
  return own ? buffer.scalar_type() : scalar_type(*buffer_dtype);
}

struct TakeGradient final : torch::autograd::PostAccumulateGradHook {
  TakeGradient(StepRecorder* recorder, uint32_t parameter)
      : recorder(recorder), parameter(parameter) {}
  void operator()(const torch::autograd::Variable& tensor) override {
    tensor.mutable_grad().reset();
    recorder->gradient_complete(parameter);
  }
  StepRecorder* const recorder;
  const uint32_t parameter;
};

// The module's tensors while they are others; back in their places afterwards.
class Replaced {
 public:
  Replaced(const ModelTensors& model, at::Device device, const ProfileOptions& options)
      : parameters_(parameters_of(model)) {
    const at::NoGradGuard no_grad;
    keep_interception();
    binding_ = std::make_shared<ChunkBinding>();
    try {
      replace(model, device, options);
    } catch (...) {  // a tensor without values: none stays replaced
      restore();
      throw;
    }
  }

  ~Replaced() { restore(); }

  void watch(StepRecorder* recorder) {
    binding_->begin(recorder);
    for (uint32_t i = 0; i < parameters_.size(); ++i) {
      auto& hooks = torch::autograd::impl::post_acc_grad_hooks(parameters_[i].tensor);
      hooks_.push_back(std::move(hooks));
      if (!parameters_[i].tensor.requires_grad()) continue;
      torch::autograd::impl::set_post_acc_grad_hooks(parameters_[i].tensor,
                                                     std::make_unique<TakeGradient>(recorder, i));
    }
    for (const at::Tensor& buffer : buffers_) recorder->ignore(buffer);
  }

  const std::vector<NamedTensor>& parameters() const { return parameters_; }
  uint64_t buffer_bytes() const {
    uint64_t bytes = 0;
    for (const at::Tensor& buffer : buffers_) bytes += MemoryCount::rounded(buffer.nbytes());
    return bytes;
  }

 private:
  struct Saved {
    at::Tensor tensor, data, grad, values;
  };

  void replace(const ModelTensors& model, at::Device device, const ProfileOptions& options) {
    for (uint32_t i = 0; i < parameters_.size(); ++i) {
      replace_parameter(i, device, scalar_type(options.dtype));
    }
    for (const NamedTensor& item : model.buffers) {
      const at::Tensor& buffer = item.tensor;
      if (!buffer.defined()) continue;
      const at::Tensor standing =
          standing_for(buffer, device, dtype_of(buffer, options.buffer_dtype));
      saved_.push_back({buffer, buffer.variable_data(), {}, {}});
      replace_data(buffer, standing);
      buffers_.push_back(buffer);
    }
  }

  void restore() {
    const at::NoGradGuard no_grad;
    for (Saved& saved : saved_) {
      saved.tensor.mutable_grad().reset();
      replace_data(saved.tensor, saved.data);
      if (saved.grad.defined()) saved.tensor.mutable_grad() = saved.grad;
    }
    for (uint32_t i = 0; i < hooks_.size(); ++i) {
      torch::autograd::impl::post_acc_grad_hooks(parameters_[i].tensor) = std::move(hooks_[i]);
    }
    binding_->end();
  }

  void replace_parameter(uint32_t index, at::Device device, at::ScalarType dtype) {
    at::Tensor& tensor = parameters_[index].tensor;
    Saved saved{tensor, tensor.variable_data(), tensor.grad(), {}};
    const size_t bytes = static_cast<size_t>(tensor.numel()) * c10::elementSize(dtype);
    const auto storage = c10::make_intrusive<ChunkStorage>(binding_, index, bytes, device);
    if (!device.is_meta()) {
      saved.values = standing_for(tensor, device, dtype);
      storage->place(saved.values.data_ptr());
    }
    tensor.mutable_grad().reset();
    replace_data(tensor, chunk_view(storage, dtype, 0, tensor.sizes()));
    saved_.push_back(std::move(saved));
  }

  std::vector<NamedTensor> parameters_;
  std::shared_ptr<ChunkBinding> binding_;
  std::vector<Saved> saved_;
  std::vector<at::Tensor> buffers_;
  std::vector<std::unique_ptr<torch::autograd::PostAccumulateGradHook>> hooks_;
};

class ObservedRegions {
 public:
  explicit ObservedRegions(RegionObserver* observer) : before_(observe_regions(observer)) {}
  ~ObservedRegions() { observe_regions(before_); }

 private:
  RegionObserver* const before_;
};

// Parameters in the order of their first use, those without one last.
std::vector<uint32_t> first_use_order(const RecordedStep& step, size_t parameters) {
  std::vector<uint32_t> order;
  std::vector<bool> seen(parameters, false);
  const auto add = [&](uint32_t parameter) {
    if (!seen[parameter]) order.push_back(parameter);
    seen[parameter] = true;
  };
  for (const std::vector<uint32_t>& reads : step.steps) {
    for (const uint32_t parameter : reads) add(parameter);
  }
  for (uint32_t i = 0; i < parameters; ++i) add(i);
  return order;
}

// Sees nothing. While there is an observer, what is known of second runs stays known.
class NoObserver final : public RegionObserver {
  void region_begins(std::optional<uint32_t> /*number*/,
                     const std::vector<Boundary>& /*boundaries*/) override {}
  void region_ends() noexcept override {}
  void second_run_begins() override {}
  void second_run_ends(uint32_t /*left_out*/) noexcept override {}
};

class WithRegionPlan {
 public:
  explicit WithRegionPlan(const RegionPlan& plan) : before_(region_plan()) {
    set_region_plan(plan);
  }
  ~WithRegionPlan() { set_region_plan(before_); }

 private:
  const RegionPlan before_;
};

planner::RegionBytes bytes_of(const RecordedRegion& region) {
  const RecordedRegion::Run& forward = region.forward;
  return {.held = forward.end_bytes - std::min(forward.begin_bytes, forward.end_bytes),
          .forward_peak = region.forward.peak_bytes - region.forward.begin_bytes,
          .backward_peak = region.backward.peak_bytes - region.backward.begin_bytes};
}

planner::ProfiledRegion::Run run_of(const RecordedRegion::Run& run) {
  return {.steps = run.steps, .begin_bytes = run.begin_bytes, .after_bytes = run.after_bytes};
}

// Products that a region which keeps its products computes nevertheless (client/tensors/
// known_regions.h: sorts of regions that begin alike).
void move_what_runs_again(const std::vector<planner::SecondRunWork>& still,
                          planner::SecondRunWork* work) {
  const auto same = std::find_if(still.begin(), still.end(),
                                 [&](const auto& other) { return other.step == work->step; });
  if (same == still.end() || same->products.kernels == 0) return;
  planner::OperatorWork kept = work->products;
  if (!kept.remove(same->products)) kept = {};
  planner::OperatorWork computed = work->products;
  computed.remove(kept);
  work->others.add(computed);
  work->products = kept;
}

// By Keep: a step in which all regions keep so much. Empty: they differ by more than that, or some
// region is not in both passes.
using StepsByKeep = std::array<RecordedStep, kKeeps.size()>;
std::vector<planner::ProfiledRegion> regions_of(const StepsByKeep& steps) {
  const std::vector<RecordedRegion>& nothing = steps[0].numbered_regions;
  std::vector<planner::ProfiledRegion> regions;
  for (size_t i = 0; i < nothing.size(); ++i) {
    planner::ProfiledRegion region{.forward = run_of(nothing[i].forward),
                                   .backward = run_of(nothing[i].backward),
                                   .second_run = nothing[i].second_run,
                                   .boundary_bytes = nothing[i].input_bytes};
    for (size_t keep = 0; keep < steps.size(); ++keep) {
      if (steps[keep].numbered_regions.size() != nothing.size()) return {};
      const RecordedRegion& recorded = steps[keep].numbered_regions[i];
      if (recorded.forward.times != 1 || recorded.backward.times != 1) return {};
      region.bytes[keep] = bytes_of(recorded);
    }
    if (!nothing[i].forward.reads || !nothing[i].backward.reads) return {};
    const auto& still = steps[static_cast<size_t>(Keep::kProducts)].numbered_regions[i].second_run;
    const auto last = static_cast<uint32_t>(steps[0].steps.size() - 1);
    for (planner::SecondRunWork& work : region.second_run) {
      move_what_runs_again(still, &work);
      work.step = std::min(work.step, last);
    }
    regions.push_back(std::move(region));
  }
  return regions;
}

planner::ModelProfile profile_of(const RecordedStep& step, const Replaced& module,
                                 const ProfileOptions& options) {
  const std::vector<NamedTensor>& parameters = module.parameters();
  const std::vector<uint32_t> order = first_use_order(step, parameters.size());
  std::vector<uint32_t> place(order.size());
  planner::ModelProfile profile;
  const auto last = static_cast<uint32_t>(step.steps.empty() ? 0 : step.steps.size() - 1);
  for (uint32_t i = 0; i < order.size(); ++i) {
    const NamedTensor& parameter = parameters[order[i]];
    place[order[i]] = i;
    profile.params.push_back({.name = parameter.name,
                              .numel = static_cast<uint64_t>(parameter.tensor.numel()),
                              .shared = step.shared[order[i]],
                              .frozen = !parameter.tensor.requires_grad()});
    const int64_t after = step.gradient_after[order[i]];
    profile.gradient_after.push_back(after < 0 ? last : static_cast<uint32_t>(after));
  }
  for (const std::vector<uint32_t>& reads : step.steps) {
    std::vector<uint32_t>& renamed = profile.steps.emplace_back();
    for (const uint32_t parameter : reads) renamed.push_back(place[parameter]);
  }
  profile.checkpoint_regions = step.region_steps;
  profile.activation_bytes = step.peak_bytes;
  profile.buffer_bytes = module.buffer_bytes() + step.input_bytes;
  profile.type = options.dtype;
  profile.tokens = options.tokens;
  profile.step_work = step.work;
  for (const planner::OperatorWork& work : step.work) profile.step_flops.push_back(work.flops());
  profile.backward_begin = step.backward_begin;
  profile.activation_curve = step.peaks;
  profile.model = options.model;
  return profile;
}

std::vector<c10::DeviceType> counted_devices(at::Device device, ProfileTarget target) {
  std::vector<c10::DeviceType> types = {device.type()};
  // On a CPU target, what a step keeps in the CPU's memory beside its tensors is on the device.
  if (device.is_meta() && target == ProfileTarget::kCpu) types.push_back(c10::kCPU);
  return types;
}

// Records one step in `step`; `failed` is the operator that threw, if one did.
planner::ModelProfile record_step(const ModelTensors& model, const LossOn& loss,
                                  const ProfileOptions& options, at::Device device,
                                  RecordedStep* step, std::string* failed) {
  const c10::impl::ExcludeDispatchKeyGuard computing(kMetaInitKey);  // also under MetaInit
  Replaced module(model, device, options);
  const at::AutoGradMode gradients(true);
  CountedMemory memory(counted_devices(device, options.target));
  StepRecorder recorder(device, module.parameters().size(), &memory.count());
  module.watch(&recorder);
  try {
    const ObservedOperators operators(&recorder);
    const ObservedRegions regions(&recorder);
    const at::Tensor value = loss(device);
    recorder.begin_backward();
    value.backward();
  } catch (...) {
    *failed = recorder.failed_operator();
    throw;
  }
  *step = recorder.finish();
  return profile_of(*step, module, options);
}

// Each region's second run is known once a step has run. So a step with regions runs once more as
// it will each time, and once with each amount that they could keep.
planner::ModelProfile record_steps(const ModelTensors& model, const LossOn& loss,
                                   const ProfileOptions& options, std::string* failed) {
  NoObserver none;
  const ObservedRegions keeps_what_is_known(&none);
  const auto record = [&](const RegionPlan& plan, RecordedStep* step) {
    const WithRegionPlan regions(plan);
    return record_step(model, loss, options, at::kMeta, step, failed);
  };
  StepsByKeep steps;
  planner::ModelProfile profile = record({}, &steps[0]);
  if (steps[0].numbered_regions.empty()) return profile;
  const auto n = static_cast<uint32_t>(steps[0].numbered_regions.size());
  profile = record({}, &steps[0]);
  if (!stops_early()) return profile;  // and keeps no products
  const uint32_t regions = steps[0].first_number + n;
  record({.regions = regions, .keep_products = n}, &steps[static_cast<size_t>(Keep::kProducts)]);
  record({.regions = regions, .keep_all = n}, &steps[static_cast<size_t>(Keep::kAll)]);
  profile.regions = regions_of(steps);
  return profile;
}

}  // namespace

Result<planner::ModelProfile> profile_step(const ModelTensors& model, const LossOn& loss,
                                           const ProfileOptions& options) {
  const TargetKernels kernels(options.target);
  std::string failed;
  try {
    return record_steps(model, loss, options, &failed);
  } catch (const c10::NotImplementedError& unknown) {
    return error(Code::kUnavailable,
                 "operator {} cannot be profiled: it has no kernel for meta tensors; measure a "
                 "step instead (profile_or_measure), or register one (client/profile/"
                 "meta_kernels.h)",
                 failed.empty() ? unknown.what_without_backtrace() : failed);
  }
}

planner::ModelProfile measure_step(const ModelTensors& model, const LossOn& loss,
                                   const ProfileOptions& options) {
  std::string failed;
  NoObserver none;
  const ObservedRegions keeps_what_is_known(&none);
  RecordedStep step;
  planner::ModelProfile profile = record_step(model, loss, options, at::kCPU, &step, &failed);
  if (!step.numbered_regions.empty()) {  // as it will run each time
    profile = record_step(model, loss, options, at::kCPU, &step, &failed);
  }
  profile.measured = true;
  return profile;
}

planner::ModelProfile profile_or_measure(const ModelTensors& model, const LossOn& loss,
                                         const ProfileOptions& options) {
  Result<planner::ModelProfile> profile = profile_step(model, loss, options);
  if (profile.ok()) return std::move(*profile);
  if (profile.status().code() != Code::kUnavailable) throw Error(profile.status());
  log_warn("measure_step", "{}; measuring one step on the CPU", profile.status().message());
  return measure_step(model, loss, options);
}

}  // namespace elixir
