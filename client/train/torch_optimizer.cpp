#include "client/train/torch_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "base/throw_error.h"
#include "client/train/engine.h"

namespace elixir {
namespace {

// `visitor` of the options as the class that they must have.
template <typename Visitor>
void visit(torch::optim::OptimizerOptions& options, UpdateRule rule, const Visitor& visitor) {
  if (rule == UpdateRule::kAdam) {
    if (auto* adam = dynamic_cast<torch::optim::AdamOptions*>(&options)) return visitor(*adam);
  } else {
    if (auto* adamw = dynamic_cast<torch::optim::AdamWOptions*>(&options)) return visitor(*adamw);
  }
  throw Error(error(Code::kInvalidArgument,
                    "a group of torch_optimizer() was given options of another class: it must have "
                    "torch::optim::{}",
                    rule == UpdateRule::kAdam ? "AdamOptions" : "AdamWOptions"));
}

optim::AdamOptions read_options(torch::optim::OptimizerOptions& from, UpdateRule rule) {
  optim::AdamOptions h;
  h.rule = rule;
  visit(from, rule, [&](const auto& options) {
    if (options.amsgrad()) {
      throw Error(error(Code::kInvalidArgument,
                        "amsgrad was set in the options of torch_optimizer(): Elixir has no third "
                        "moment; set it to false"));
    }
    h.lr = options.lr();
    std::tie(h.beta1, h.beta2) = options.betas();
    h.eps = options.eps();
    h.weight_decay = options.weight_decay();
  });
  return h;
}

void write_options(torch::optim::OptimizerOptions& to, const optim::AdamOptions& h) {
  visit(to, h.rule, [&](auto& options) {
    options.lr(h.lr).betas(std::tuple(h.beta1, h.beta2)).eps(h.eps).weight_decay(h.weight_decay);
  });
}

std::unique_ptr<torch::optim::OptimizerOptions> new_options(const optim::AdamOptions& h) {
  std::unique_ptr<torch::optim::OptimizerOptions> options;
  if (h.rule == UpdateRule::kAdam) {
    options = std::make_unique<torch::optim::AdamOptions>();
  } else {
    options = std::make_unique<torch::optim::AdamWOptions>();
  }
  write_options(*options, h);
  return options;
}

// What is other in `now` than it was; empty: nothing.
std::optional<ParamGroup> changes_to(const optim::AdamOptions& now,
                                     const optim::AdamOptions& before) {
  ParamGroup changes;
  if (now.lr != before.lr) changes.lr = now.lr;
  if (now.weight_decay != before.weight_decay) changes.weight_decay = now.weight_decay;
  if (now.beta1 != before.beta1 || now.beta2 != before.beta2) {
    changes.betas = std::pair(now.beta1, now.beta2);
  }
  if (now.eps != before.eps) changes.eps = now.eps;
  if (!changes.lr && !changes.weight_decay && !changes.betas && !changes.eps) return std::nullopt;
  return changes;
}

std::vector<const c10::TensorImpl*> impls_of(const std::vector<at::Tensor>& tensors) {
  std::vector<const c10::TensorImpl*> impls;
  for (const at::Tensor& tensor : tensors) impls.push_back(tensor.unsafeGetTensorImpl());
  return impls;
}

std::vector<torch::optim::OptimizerParamGroup> groups_of(Engine& engine) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (ParamGroup& group : engine.param_groups()) {
    const optim::AdamOptions& h = engine.control().group(static_cast<uint32_t>(groups.size()));
    groups.emplace_back(std::move(group.parameters), new_options(h));
  }
  return groups;
}

}  // namespace

void throw_released() {
  throw Error(error(Code::kInvalidArgument,
                    "the optimizer has released its model: build another one to train it again"));
}

TorchOptimizer::TorchOptimizer(Engine& engine)
    : torch::optim::Optimizer(groups_of(engine), new_options(engine.control().group(0))),
      engine_(&engine) {
  for (uint32_t i = 0; i < param_groups_.size(); ++i) {
    synced_.push_back(engine.control().group(i));
    parameters_.push_back(impls_of(param_groups_[i].params()));
  }
}

// What torch lets a program do to its list of parameters, Elixir does not hear of.
void TorchOptimizer::check_groups() const {
  if (!state_.empty()) {
    throw Error(error(Code::kInvalidArgument,
                      "state() of torch_optimizer() was written: moments and step counts lie in "
                      "elixird, which does not see it"));
  }
  const bool same = std::equal(
      param_groups_.begin(), param_groups_.end(), parameters_.begin(), parameters_.end(),
      [](const torch::optim::OptimizerParamGroup& group,
         const std::vector<const c10::TensorImpl*>& given) {
        return std::equal(group.params().begin(), group.params().end(), given.begin(), given.end(),
                          [](const at::Tensor& tensor, const c10::TensorImpl* impl) {
                            return tensor.unsafeGetTensorImpl() == impl;
                          });
      });
  if (same) return;
  throw Error(error(Code::kInvalidArgument,
                    "the groups or parameters of torch_optimizer() were changed (add_param_group, "
                    "add_parameters, params()), of which Elixir does not hear: use "
                    "Optimizer::add_param_group for a group of its own, and requires_grad_(false) "
                    "for what is not to be trained"));
}

void TorchOptimizer::pull() {
  if (engine_ == nullptr) throw_released();
  check_groups();
  for (uint32_t i = 0; i < synced_.size(); ++i) {
    const optim::AdamOptions now = read_options(param_groups_[i].options(), synced_[i].rule);
    const std::optional<ParamGroup> changes = changes_to(now, synced_[i]);
    if (!changes) continue;
    engine_->set_param_group(i, *changes);
    synced_[i] = now;
  }
}

void TorchOptimizer::push() {
  for (uint32_t i = 0; i < synced_.size(); ++i) {
    synced_[i] = engine_->control().group(i);
    write_options(param_groups_[i].options(), synced_[i]);
  }
}

void TorchOptimizer::add_group() {
  std::vector<at::Tensor> added = std::move(engine_->param_groups().back().parameters);
  parameters_.push_back(impls_of(added));
  const std::unordered_set<const c10::TensorImpl*> moved(parameters_.back().begin(),
                                                         parameters_.back().end());
  std::erase_if(param_groups_[0].params(), [&](const at::Tensor& parameter) {
    return moved.contains(parameter.unsafeGetTensorImpl());
  });
  parameters_[0] = impls_of(param_groups_[0].params());
  param_groups_.emplace_back(std::move(added), new_options(synced_[0]));
  synced_.emplace_back();
  push();
}

void TorchOptimizer::save(torch::serialize::OutputArchive& /*archive*/) const {
  throw Error(error(Code::kInvalidArgument,
                    "torch::save of an elixir optimizer: its states are in elixird and cannot be "
                    "saved this way; call release(), then save the model's weights"));
}

void TorchOptimizer::load(torch::serialize::InputArchive& /*archive*/) {
  throw Error(error(Code::kInvalidArgument,
                    "torch::load into an elixir optimizer: its states lie in elixird, and cannot "
                    "be loaded yet"));
}

at::Tensor TorchOptimizer::step(LossClosure closure) {
  pull();
  if (!closure) {
    engine_->step(std::nullopt);
    return {};
  }
  at::Tensor loss;
  {
    const at::AutoGradMode with_grad(true);
    loss = closure();
  }
  pull();  // it may set options
  engine_->step(loss);
  return loss;
}

}  // namespace elixir
