#include "client/train/module_parameters.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "base/log.h"
#include "base/throw_error.h"
#include "base/units.h"
#include "client/tensors/chunk_storage.h"
#include "client/tensors/meta_init.h"
#include "client/tensors/replace_data.h"
#include "client/tensors/resolved.h"
#include "client/tensors/scalar_type.h"
#include "planner/plan/plan.h"
#include "shm/layout.h"

namespace elixir {
namespace {

uint64_t numel_of(const at::Tensor& tensor) { return static_cast<uint64_t>(tensor.numel()); }

bool has_values(const at::Tensor& tensor) {
  return tensor.device().is_cpu() || remembers_its_values(tensor);
}

bool fits_chunks(const at::Tensor& tensor, ValuesFrom values) {
  const bool filled = has_values(tensor) || (values == ValuesFrom::kFolder && tensor.is_meta());
  return special_kind(tensor) == nullptr && chunks_take(tensor.scalar_type()) && filled;
}

void refuse(const std::string& name, const std::string& why) {
  throw Error(error(Code::kInvalidArgument, "parameter '{}' {}", name, why));
}

// Each once, in the order of registration.
template <typename Wanted>
std::vector<ModuleParameter> parameters_that(const ModelTensors& model, const Wanted& wanted) {
  std::vector<ModuleParameter> result;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& [name, tensor] : model.parameters) {
    if (!wanted(tensor) || !seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    if (const char* const kind = special_kind(tensor)) {
      refuse(name, fmt::format("is {}, so its elements are not its memory alone: name it in "
                               "Options::leave_out",
                               kind));
    }
    result.push_back({{.name = name, .numel = numel_of(tensor)},
                      tensor,
                      0,
                      tensor.scalar_type(),
                      tensor.is_contiguous()});
  }
  return result;
}

void check_free(const std::string& name, const at::Tensor& tensor) {
  const ChunkStorage* const storage = chunk_storage_of(tensor);
  if (storage != nullptr && !storage->binding()->has_source()) {
    refuse(name,
           "belonged to an elixir optimizer that no longer exists, and its values are lost: build "
           "the model again; call release() before an optimizer ends to keep the model");
  }
  if (storage != nullptr) {
    refuse(name,
           "belongs to an elixir optimizer already: give all parameters to one (ParamGroup sets "
           "learning rates apart), or release() the model from the first");
  }
  if (tensor.is_inference()) {
    refuse(name,
           "was made in InferenceMode, where autograd does not see it: build the module "
           "outside of it");
  }
}

void check_trainable(const std::string& name, const at::Tensor& tensor, ValuesFrom values) {
  check_free(name, tensor);
  if (!tensor.is_leaf()) {
    refuse(name,
           "is not a leaf of the graph: it was computed from other tensors, which would have "
           "to be trained in its place; register parameter.detach(), or those tensors");
  }
  const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(tensor);
  if (accumulator != nullptr &&
      !(accumulator->pre_hooks().empty() && accumulator->post_hooks().empty())) {
    refuse(name,
           "has a hook on the node that accumulates its gradient, which would never run: set it "
           "after the optimizer is built, or use a tensor hook (register_hook)");
  }
  if (fits_chunks(tensor, values)) return;
  throw Error(error(Code::kInvalidArgument,
                    "parameter '{}' is {} on {}: Elixir trains parameters of FP16, BF16, FP32 or "
                    "FP64 that are built on the CPU or under elixir::MetaInit",
                    name, tensor.dtype().name(), tensor.device().str()));
}

// Two tensors of one storage, by their elements.
bool share_elements(const at::Tensor& a, const at::Tensor& b) {
  const at::MemOverlapStatus status = at::get_overlap_status(a, b);
  if (status != at::MemOverlapStatus::TooHard) return status != at::MemOverlapStatus::No;
  if (a.element_size() != b.element_size()) return true;
  const auto bytes = static_cast<int64_t>(a.storage().nbytes());
  const at::Tensor all = at::zeros({bytes / static_cast<int64_t>(a.element_size())}, at::kBool);
  all.as_strided(a.sizes(), a.strides(), a.storage_offset()).fill_(true);
  return all.as_strided(b.sizes(), b.strides(), b.storage_offset()).any().item<bool>();
}

struct Named {
  std::string name;
  at::Tensor tensor;
  bool parameter;
};

std::vector<Named> all_tensors(const ModelTensors& model) {
  std::vector<Named> all;
  for (const auto& [name, tensor] : model.parameters) all.push_back({name, tensor, true});
  for (const auto& [name, tensor] : model.buffers) all.push_back({name, tensor, false});
  return all;
}

}  // namespace

void refuse_shared_memory(const ModelTensors& model) {
  const at::NoGradGuard no_grad;
  std::unordered_map<const c10::StorageImpl*, std::vector<Named>> by_storage;
  for (const Named& item : all_tensors(model)) {
    if (!item.tensor.defined() || !item.tensor.has_storage() || item.tensor.numel() == 0) continue;
    if (item.tensor.is_meta()) continue;  // its values are in no memory
    std::vector<Named>& others = by_storage[item.tensor.storage().unsafeGetStorageImpl()];
    for (const Named& other : others) {
      if (item.tensor.is_same(other.tensor) || !(item.parameter || other.parameter)) continue;
      if (!share_elements(item.tensor, other.tensor)) continue;
      throw Error(error(Code::kInvalidArgument,
                        "'{}' and '{}' share memory and are two tensors: in chunks they would part "
                        "without a word; tie them by registering one tensor under both names",
                        other.name, item.name));
    }
    others.push_back(item);
  }
}

std::vector<ModuleParameter> trainable_parameters(const ModelTensors& model, ValuesFrom values) {
  std::vector<ModuleParameter> result = parameters_that(
      model, [](const at::Tensor& tensor) { return tensor.requires_grad() && tensor.numel() > 0; });
  for (const ModuleParameter& parameter : result) {
    check_trainable(parameter.name, parameter.tensor, values);
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

std::vector<ModuleParameter> frozen_parameters(const ModelTensors& model, ValuesFrom values) {
  std::vector<ModuleParameter> result;
  for (ModuleParameter& parameter :
       parameters_that(model, [](const at::Tensor& tensor) { return !tensor.requires_grad(); })) {
    const at::Tensor& tensor = parameter.tensor;
    if (tensor.numel() == 0 || !chunks_take(tensor.scalar_type())) continue;
    check_free(parameter.name, tensor);
    if (!fits_chunks(tensor, values)) {
      if (tensor.is_meta()) continue;  // own_values() looks for its values, or names it
      refuse(parameter.name,
             fmt::format("lies on {}, and chunks take values from the CPU: build the module there, "
                         "or under elixir::MetaInit, or name it in Options::leave_out, which "
                         "keeps it on the device",
                         tensor.device().str()));
    }
    parameter.frozen = true;
    result.push_back(std::move(parameter));
  }
  return result;
}

ModelParts parts_of(const ModelTensors& model, const Options& options) {
  if (!options.leave_out) return {.kept = model, .left_out = {}};
  ModelParts parts{.kept = {.parameters = {}, .buffers = model.buffers}, .left_out = {}};
  for (const NamedTensor& parameter : model.parameters) {
    const bool out = options.leave_out(parameter.name, parameter.tensor);
    (out ? parts.left_out : parts.kept.parameters).push_back(parameter);
  }
  return parts;
}

void assign_groups(std::vector<ModuleParameter>& parameters,
                   const std::vector<ParamGroup>& groups) {
  if (groups.size() + 1 > shm::kMaxParamGroups) {
    throw Error(error(Code::kInvalidArgument,
                      "{} groups of parameters in addition to the optimizer's own; the limit is {}",
                      groups.size(), shm::kMaxParamGroups - 1));
  }
  std::unordered_map<const c10::TensorImpl*, ModuleParameter*> by_tensor;
  for (ModuleParameter& parameter : parameters) {
    by_tensor[parameter.tensor.unsafeGetTensorImpl()] = &parameter;
  }
  for (uint32_t i = 0; i < groups.size(); ++i) {
    for (const at::Tensor& tensor : groups[i].parameters) {
      if (tensor.defined() && tensor.numel() == 0) continue;  // in no chunk
      const auto found = by_tensor.find(tensor.unsafeGetTensorImpl());
      if (found == by_tensor.end()) {
        throw Error(
            error(Code::kInvalidArgument,
                  "group {} names a tensor of {} elements that is not a parameter of the module",
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
                        "the plan is for another model: it has a parameter '{}', which this model "
                        "does not have; profile this model",
                        planned.name));
    }
    ModuleParameter parameter = *found->second;
    parameter.own_chunk = planned.own_chunk;
    (parameter.frozen ? frozen : trained).push_back(std::move(parameter));
    by_name.erase(found);
  }
  if (!by_name.empty()) {
    throw Error(error(
        Code::kInvalidArgument,
        "the plan is for another model: it does not have the parameter '{}'; profile this model",
        by_name.begin()->first));
  }
  parameters = std::move(trained);
  parameters.insert(parameters.end(), std::make_move_iterator(frozen.begin()),
                    std::make_move_iterator(frozen.end()));
}

std::vector<ParameterSize> sizes_of(const std::vector<ModuleParameter>& parameters) {
  return {parameters.begin(), parameters.end()};
}

namespace {

// Calls take(item, type) for each once; the type that it is cast to, if any.
template <typename Take>
void for_the_rest(const ModelParts& model, const std::vector<ModuleParameter>& in_chunks,
                  const RestTypes& types, const Take& take) {
  std::unordered_set<const c10::TensorImpl*> done;
  for (const ModuleParameter& parameter : in_chunks) {
    done.insert(parameter.tensor.unsafeGetTensorImpl());
  }
  const auto add = [&](const NamedTensor& item, std::optional<at::ScalarType> type) {
    if (done.insert(item.tensor.unsafeGetTensorImpl()).second) take(item, type);
  };
  for (const NamedTensor& parameter : model.left_out) add(parameter, std::nullopt);
  for (const NamedTensor& parameter : model.kept.parameters) add(parameter, types.parameters);
  std::optional<at::ScalarType> of_buffers;
  if (types.buffers) of_buffers = scalar_type(*types.buffers);
  for (const NamedTensor& buffer : model.kept.buffers) add(buffer, of_buffers);
}

at::Tensor own_values(const NamedTensor& item) {
  if (remembers_its_values(item.tensor)) return materialise(item.tensor);
  if (!item.tensor.is_meta()) return item.tensor.detach();
  throw Error(
      error(Code::kBadInput,
            "'{}' has no values: it is on the meta device, and the folder that the model is loaded "
            "from does not have it; build it on the CPU, or under elixir::MetaInit",
            item.name));
}

}  // namespace

std::vector<NamedTensor> rest_of(const ModelParts& model,
                                 const std::vector<ModuleParameter>& in_chunks) {
  std::vector<NamedTensor> rest;
  for_the_rest(model, in_chunks, {at::kFloat, std::nullopt},
               [&](const NamedTensor& item, const auto&) { rest.push_back(item); });
  return rest;
}

std::vector<MovedTensor> values_of_the_rest(const ModelParts& model,
                                            const std::vector<ModuleParameter>& in_chunks,
                                            const RestTypes& types,
                                            const std::map<std::string, at::Tensor>& stored) {
  const at::NoGradGuard no_grad;
  std::vector<MovedTensor> rest;
  for_the_rest(
      model, in_chunks, types, [&](const NamedTensor& item, std::optional<at::ScalarType> type) {
        const auto found = stored.find(item.name);
        const at::Tensor here =
            found == stored.end() ? own_values(item) : found->second.to(item.tensor.scalar_type());
        const bool casts = type && chunks_take(here.scalar_type());
        rest.push_back(
            {item.name, item.tensor, casts ? here.to(at::kCPU, *type) : here.to(at::kCPU)});
      });
  return rest;
}

void move_to(at::Device device, const std::vector<MovedTensor>& rest) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> there;
  for (const MovedTensor& item : rest) there.push_back(item.values.to(device));
  for (size_t i = 0; i < rest.size(); ++i) replace_data(rest[i].tensor, there[i].detach());
}

void say_other_frozen_types(const std::vector<ModuleParameter>& parameters, at::ScalarType now) {
  struct Built {
    uint64_t parameters = 0, numel = 0;
  };
  std::map<at::ScalarType, Built> others;
  for (const ModuleParameter& parameter : parameters) {
    if (!parameter.frozen || parameter.built_as == now) continue;
    Built& built = others[parameter.built_as];
    ++built.parameters;
    built.numel += static_cast<uint64_t>(parameter.tensor.numel());
  }
  for (const auto& [type, built] : others) {
    log_warn("frozen_type",
             "parameters={} built_as={} now={} bytes=\"{}\" before=\"{}\" why=\"chunks have one "
             "type, Options::dtype\" remedy=\"name them in Options::leave_out, which keeps their "
             "type and holds them on the device\"",
             built.parameters, c10::toString(type), c10::toString(now),
             format_bytes(built.numel * c10::elementSize(now)),
             format_bytes(built.numel * c10::elementSize(type)));
  }
}

}  // namespace elixir
