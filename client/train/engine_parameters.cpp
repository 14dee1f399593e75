// What a program asks of single parameters: gradients, values, groups, and all of them back.

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/throw_error.h"
#include "client/tensors/replace_data.h"
#include "client/train/engine.h"
#include "shm/load_part.h"

namespace elixir {

uint32_t Engine::index_of(const at::Tensor& parameter, const char* who) const {
  for (uint32_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].tensor.is_same(parameter)) return i;
  }
  throw Error(error(Code::kInvalidArgument,
                    "{} of a tensor {} that is not a parameter of this optimizer: give it the "
                    "module's own, not a copy or a view",
                    who, parameter.defined() ? c10::str(parameter.sizes()) : "without values"));
}

std::string Engine::parameter_at(uint32_t chunk, int64_t offset) const {
  const auto at = static_cast<uint64_t>(offset);
  for (const shm::ParameterPlace& place : run_plan_.chunks.places) {
    const bool there =
        place.chunk == chunk && place.offset <= at && at < place.offset + place.numel;
    if (there) return place.name;
  }
  return {};
}

void Engine::require_between_steps(const char* who) const {
  throw_if_failed();
  const char* const when = grad_offload_->pending()   ? "between backward() and step()"
                           : rcache_->n_pinned() != 0 ? "while elixir::gathered() holds parameters"
                                                      : nullptr;
  if (when == nullptr) return;
  throw Error(error(Code::kInvalidArgument, "{} {}: call it after step()", who, when));
}

// ---- gradients ----

void Engine::keep(uint32_t parameter, const at::Tensor& grad) {
  const at::NoGradGuard no_grad;
  const uint32_t step = control_.step() + 1;
  if (kept_step_ != step) kept_grads_.clear();
  kept_step_ = step;
  kept_grads_.resize(n_trained());
  at::Tensor& kept = kept_grads_[parameter];
  const at::Tensor dense = (grad.is_sparse() ? grad.to_dense() : grad).detach();
  if (kept.defined()) {
    kept.add_(dense);
  } else {
    kept = dense.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  }
}

at::Tensor Engine::gradient(const at::Tensor& parameter) const {
  throw_in_child("gradient()");
  const MutexLock lock(mutex_);
  const uint32_t index = index_of(parameter, "gradient()");
  if (!keeps_gradients_) {
    throw Error(error(Code::kInvalidArgument,
                      "gradient() of '{}', and gradients go to elixird as they come: set "
                      "Options::keep_gradients, which keeps a copy of each (4 bytes a parameter)",
                      parameters_[index].name));
  }
  return index < kept_grads_.size() && kept_grads_[index].defined() ? kept_grads_[index].clone()
                                                                    : at::Tensor();
}

// ---- groups ----

std::vector<ParamGroup> Engine::param_groups() const {
  std::vector<ParamGroup> groups;
  for (uint32_t i = 0; i < control_.n_groups(); ++i) {
    const optim::AdamOptions& h = control_.group(i);
    groups.push_back({{}, h.lr, h.weight_decay, std::pair(h.beta1, h.beta2), h.eps});
  }
  for (const ModuleParameter& parameter : parameters_) {
    if (!parameter.frozen) groups[parameter.group].parameters.push_back(parameter.tensor);
  }
  return groups;
}

void Engine::set_param_group(uint32_t group, const ParamGroup& changes) {
  throw_in_child("set_param_group()");
  if (!changes.parameters.empty()) {
    throw Error(error(Code::kInvalidArgument,
                      "set_param_group() of group {} with {} parameters: it changes "
                      "hyperparameters alone; add_param_group() gives parameters a new group",
                      group, changes.parameters.size()));
  }
  control_.set_group(group, changed(control_.group(group), changes));
}

uint32_t Engine::add_param_group(const ParamGroup& group) {
  throw_in_child("add_param_group()");
  const MutexLock lock(mutex_);
  require_between_steps("add_param_group()");
  if (control_.n_groups() == shm::kMaxParamGroups) {
    throw Error(error(Code::kInvalidArgument, "there are {} groups of parameters already, the most",
                      shm::kMaxParamGroups));
  }
  std::vector<uint32_t> moved;
  for (const at::Tensor& tensor : group.parameters) {
    if (tensor.defined() && tensor.numel() == 0) continue;  // in no chunk
    const uint32_t index = index_of(tensor, "add_param_group()");
    const ModuleParameter& parameter = parameters_[index];
    if (parameter.frozen || parameter.group != 0) {
      throw Error(error(Code::kInvalidArgument, "add_param_group() of '{}', which {}",
                        parameter.name,
                        parameter.frozen ? "was frozen when the optimizer was built"
                                         : fmt::format("is in group {}", parameter.group)));
    }
    moved.push_back(index);
  }
  const uint32_t number = control_.add_group(changed(control_.group(0), group));
  for (const uint32_t index : moved) parameters_[index].group = number;
  return number;
}

void Engine::pull_before_fixing(std::function<void()> pull) {
  const MutexLock lock(mutex_);
  pull_ = std::move(pull);
}

// ---- values ----

HeldValues Engine::held_values() const {
  return {run_plan_, parameters_, environment_.local_world_size, *session_, *exchange_};
}

at::Tensor Engine::value(const at::Tensor& parameter) {
  throw_in_child("value()");
  const at::NoGradGuard no_grad;
  const uint32_t index = index_of(parameter, "value()");
  require_all_here(held_values(), "value()", index);
  MutexLock lock(mutex_);
  await_operators("value()", lock);
  require_between_steps("value()");
  finish();
  return read_value(held_values(), index);
}

ParameterState Engine::state(const at::Tensor& parameter) {
  throw_in_child("state()");
  const at::NoGradGuard no_grad;
  const uint32_t index = index_of(parameter, "state()");
  if (parameters_[index].frozen) {
    throw Error(error(Code::kInvalidArgument, "state() of '{}', which is frozen: it has none",
                      parameters_[index].name));
  }
  require_all_here(held_values(), "state()", index);
  MutexLock lock(mutex_);
  await_operators("state()", lock);
  require_between_steps("state()");
  finish();
  ParameterState state = read_state(held_values(), index);
  state.step = control_.updates(*session_)[index];
  return state;
}

void Engine::set_parameter(const at::Tensor& parameter, const at::Tensor& values) {
  throw_in_child("set_parameter()");
  NewValues given;
  given.add(held_values(), "set_parameter()", index_of(parameter, "set_parameter()"), values);
  set_values("set_parameter()", given);
}

void Engine::set_parameters(const std::vector<NamedTensor>& values) {
  throw_in_child("set_parameters()");
  std::unordered_map<std::string_view, uint32_t> by_name;
  for (uint32_t i = 0; i < parameters_.size(); ++i) by_name[parameters_[i].name] = i;
  NewValues given;
  for (const NamedTensor& item : values) {
    const auto found = by_name.extract(item.name);  // each once
    if (found.empty()) {
      throw Error(error(Code::kInvalidArgument,
                        "set_parameters() with '{}', which is not a parameter of this optimizer, "
                        "or is given twice",
                        item.name));
    }
    given.add(held_values(), "set_parameters()", found.mapped(), item.tensor);
  }
  set_values("set_parameters()", given);
}

void Engine::set_values(const char* who, NewValues& given) {
  const at::NoGradGuard no_grad;
  for (const NewValues::Round& round : given.rounds(held_values())) {
    given.prepare(held_values(), round);
    MutexLock lock(mutex_);
    await_operators(who, lock);
    require_between_steps(who);
    finish();
    exchange_->await_loaded(CollectiveKind::kSetParameter);  // no rank reads the slots any more
    given.set(held_values(), round);
    exchange_->await_loaded(CollectiveKind::kSetParameter);
    for (const uint32_t chunk : round.chunks) forget(chunk);
  }
  for (const uint32_t parameter : given.parameters()) {
    parameters_[parameter].tensor.unsafeGetTensorImpl()->bump_version();
  }
}

// What a block holds of the chunk is not its value any more.
void Engine::forget(uint32_t chunk) {
  const uint32_t block = rcache_->block_of(chunk);
  if (block == RCache::kNone) return;
  rcache_->drop(chunk);
  storages_[chunk]->place(nullptr);
}

void Engine::release_model() {
  throw_in_child("release()");
  const at::NoGradGuard no_grad;
  std::vector<std::pair<at::Tensor, at::Tensor>> back;  // and its values
  for (const Rest& item : rest_) {
    back.emplace_back(item.tensor, item.tensor.detach().to(at::kCPU, item.built_as));
  }
  {
    MutexLock lock(mutex_);
    await_operators("release()", lock);
    require_between_steps("release()");
    finish();
    exchange_->await_loaded(CollectiveKind::kRelease);
  }
  std::vector<float> values;
  std::vector<at::Tensor> of_parameter(parameters_.size());
  for (uint32_t chunk = 0; chunk < run_plan_.shape.total_chunks(); ++chunk) {
    read_chunk(held_values(), chunk, values);
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const shm::ParameterPlace& place = run_plan_.chunks.places[i];
      const shm::ChunkRun run = shm::chunks_of(place, run_plan_.shape);
      if (!run.contains(chunk)) continue;
      const ModuleParameter& parameter = parameters_[i];
      const shm::ParameterPart part = shm::part_in(place, run_plan_.shape, chunk);
      at::Tensor& here = of_parameter[i];
      if (chunk == run.first) {
        here = at::empty(parameter.tensor.sizes(), parameter.frozen ? dtype_ : at::kFloat);
      }
      shm::put_part(
          values.data() + part.offset, part.numel,
          parameter.frozen ? shm::frozen_part(run_plan_.shape.type) : shm::LoadPart::kWhole,
          static_cast<std::byte*>(here.mutable_data_ptr()) + part.first * here.element_size());
      if (chunk + 1 < run.end()) continue;
      back.emplace_back(parameter.tensor, std::exchange(here, at::Tensor()).to(parameter.built_as));
    }
  }
  exchange_->await_loaded(CollectiveKind::kRelease);  // all ranks have read
  {
    const MutexLock lock(mutex_);
    taken_->clear();
  }
  unhook_gradients();
  for (const auto& [tensor, data] : back) {
    const at::Tensor grad =
        std::exchange(tensor.mutable_grad(), at::Tensor());  // of what is left out
    replace_data(tensor, data);
    if (grad.defined()) tensor.mutable_grad() = grad.to(data.device());
  }
}

}  // namespace elixir
