#include "client/train/module_parameters.h"

#include <ATen/core/grad_mode.h>

#include <iterator>
#include <unordered_map>
#include <unordered_set>

#include "base/throw_error.h"
#include "client/tensors/meta_init.h"
#include "client/tensors/replace_data.h"
#include "planner/plan/plan.h"
#include "shm/layout.h"

namespace elixir {
namespace {

uint64_t numel_of(const at::Tensor& tensor) { return static_cast<uint64_t>(tensor.numel()); }

bool has_values(const at::Tensor& tensor) {
  return tensor.device().is_cpu() || remembers_its_values(tensor);
}

bool fits_chunks(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.is_floating_point() && has_values(tensor);
}

// Each once, in the order of registration.
template <typename Wanted>
std::vector<ModuleParameter> parameters_that(torch::nn::Module& model, const Wanted& wanted) {
  std::vector<ModuleParameter> result;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& item : model.named_parameters()) {
    const at::Tensor& tensor = item.value();
    if (!wanted(tensor) || !seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    result.push_back({{.name = item.key(), .numel = numel_of(tensor)}, tensor});
  }
  return result;
}

void check_trainable(const std::string& name, const at::Tensor& tensor) {
  if (fits_chunks(tensor)) return;
  throw Error(error(Code::kInvalidArgument,
                    "parameter '{}' is {} on {} with layout {}: Elixir trains dense floating-point "
                    "parameters that are built on the CPU or under elixir::MetaInit",
                    name, tensor.dtype().name(), tensor.device().str(),
                    tensor.layout() == at::kStrided ? "strided" : "sparse"));
}

}  // namespace

std::vector<ModuleParameter> trainable_parameters(torch::nn::Module& model) {
  std::vector<ModuleParameter> result =
      parameters_that(model, [](const at::Tensor& tensor) { return tensor.requires_grad(); });
  for (const ModuleParameter& parameter : result) {
    check_trainable(parameter.name, parameter.tensor);
    const ModuleParameter& first = result[0];
    if (parameter.tensor.scalar_type() == first.tensor.scalar_type()) continue;
    throw Error(error(Code::kInvalidArgument,
                      "parameter '{}' is {} and '{}' is {}: build the module in one type "
                      "(module.to(torch::kFloat)); Options::dtype says what it computes in",
                      parameter.name, parameter.tensor.dtype().name(), first.name,
                      first.tensor.dtype().name()));
  }
  return result;
}

std::vector<ModuleParameter> frozen_parameters(torch::nn::Module& model) {
  std::vector<ModuleParameter> result = parameters_that(model, [](const at::Tensor& tensor) {
    return !tensor.requires_grad() && fits_chunks(tensor) && tensor.numel() > 0;
  });
  for (ModuleParameter& parameter : result) parameter.frozen = true;
  return result;
}

void assign_groups(std::vector<ModuleParameter>& parameters,
                   const std::vector<ParamGroup>& groups) {
  if (groups.size() + 1 > shm::kMaxParamGroups) {
    throw Error(error(Code::kInvalidArgument,
                      "{} groups of parameters beside the optimizer's own; {} are possible",
                      groups.size(), shm::kMaxParamGroups - 1));
  }
  std::unordered_map<const c10::TensorImpl*, ModuleParameter*> by_tensor;
  for (ModuleParameter& parameter : parameters) {
    by_tensor[parameter.tensor.unsafeGetTensorImpl()] = &parameter;
  }
  for (uint32_t i = 0; i < groups.size(); ++i) {
    for (const at::Tensor& tensor : groups[i].parameters) {
      const auto found = by_tensor.find(tensor.unsafeGetTensorImpl());
      if (found == by_tensor.end()) {
        throw Error(error(Code::kInvalidArgument,
                          "group {} names a tensor of {} elements that is no parameter of the "
                          "module to be trained",
                          i + 1, tensor.defined() ? tensor.numel() : 0));
      }
      if (found->second->group != 0) {
        throw Error(error(Code::kInvalidArgument, "parameter '{}' is in the groups {} and {}",
                          found->second->name, found->second->group, i + 1));
      }
      found->second->group = i + 1;
    }
  }
}

void order_by(std::vector<ModuleParameter>& parameters, const planner::Plan& plan) {
  std::unordered_map<std::string, const ModuleParameter*> by_name;
  for (const ModuleParameter& parameter : parameters) by_name[parameter.name] = &parameter;
  std::vector<ModuleParameter> trained, frozen;
  for (const planner::PlannedParameter& planned : plan.order) {
    const auto found = by_name.find(planned.name);
    if (found == by_name.end()) {
      throw Error(error(Code::kInvalidArgument,
                        "the plan is of another model: it has a parameter '{}', which this one "
                        "lacks; profile this model",
                        planned.name));
    }
    ModuleParameter parameter = *found->second;
    parameter.own_chunk = planned.own_chunk;
    (parameter.frozen ? frozen : trained).push_back(std::move(parameter));
    by_name.erase(found);
  }
  for (const ModuleParameter& parameter :
       parameters) {  // without elements: profiles leave them out
    if (parameter.numel > 0 || by_name.erase(parameter.name) == 0) continue;
    trained.insert(trained.begin(), parameter);
  }
  if (!by_name.empty()) {
    throw Error(error(Code::kInvalidArgument,
                      "the plan is of another model: it lacks the parameter '{}'; profile this "
                      "model",
                      by_name.begin()->first));
  }
  parameters = std::move(trained);
  parameters.insert(parameters.end(), std::make_move_iterator(frozen.begin()),
                    std::make_move_iterator(frozen.end()));
}

std::vector<ParameterSize> sizes_of(const std::vector<ModuleParameter>& parameters) {
  return {parameters.begin(), parameters.end()};
}

void move_the_rest(torch::nn::Module& model, const std::vector<ModuleParameter>& in_chunks,
                   at::Device device, at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  std::unordered_set<const c10::TensorImpl*> done;
  for (const ModuleParameter& parameter : in_chunks) {
    done.insert(parameter.tensor.unsafeGetTensorImpl());
  }
  const auto move = [&](at::Tensor& tensor) {
    const at::Tensor values = remembers_its_values(tensor) ? materialise(tensor) : tensor;
    replace_data(tensor, values.is_floating_point() ? values.to(device, dtype) : values.to(device));
  };
  for (at::Tensor& tensor : model.parameters()) {
    if (!done.contains(tensor.unsafeGetTensorImpl())) move(tensor);
  }
  for (at::Tensor& tensor : model.buffers()) move(tensor);
}

}  // namespace elixir
