#include "client/profile/profile.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <numeric>
#include <optional>
#include <unordered_set>

#include "base/log.h"
#include "base/throw_error.h"
#include "client/profile/counted_memory.h"
#include "client/profile/meta_kernels.h"
#include "client/profile/step_recorder.h"
#include "client/tensors/dispatch_key.h"
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
  profile.checkpoint_regions = step.regions;
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

// Records one step; `failed` is the operator that threw, if one did.
planner::ModelProfile record_step(const ModelTensors& model, const LossOn& loss,
                                  const ProfileOptions& options, at::Device device,
                                  std::string* failed) {
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
  return profile_of(recorder.finish(), module, options);
}

}  // namespace

Result<planner::ModelProfile> profile_step(const ModelTensors& model, const LossOn& loss,
                                           const ProfileOptions& options) {
  const TargetKernels kernels(options.target);
  std::string failed;
  try {
    return record_step(model, loss, options, at::kMeta, &failed);
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
  planner::ModelProfile profile = record_step(model, loss, options, at::kCPU, &failed);
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
