#include "client/train/torch_optimizer.h"

#include <ATen/core/grad_mode.h>

#include <memory>
#include <unordered_set>
#include <utility>

#include "base/throw_error.h"
#include "client/train/engine.h"

namespace elixir {
namespace {

// What torch's schedulers read and write.
class GroupOptions final : public torch::optim::OptimizerCloneableOptions<GroupOptions> {
 public:
  GroupOptions(Engine& engine, uint32_t group) : engine_(&engine), group_(group) {}
  double get_lr() const override { return engine_->control().lr(group_); }
  void set_lr(const double lr) override { engine_->set_param_group(group_, {.lr = lr}); }

 private:
  Engine* engine_;
  uint32_t group_;
};

std::vector<torch::optim::OptimizerParamGroup> groups_of(Engine& engine) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (ParamGroup& group : engine.param_groups()) {
    const auto number = static_cast<uint32_t>(groups.size());
    groups.emplace_back(std::move(group.parameters),
                        std::make_unique<GroupOptions>(engine, number));
  }
  return groups;
}

}  // namespace

TorchOptimizer::TorchOptimizer(Engine& engine)
    : torch::optim::Optimizer(groups_of(engine), std::make_unique<GroupOptions>(engine, 0)),
      engine_(engine) {}

void TorchOptimizer::check_groups() const {
  if (param_groups_.size() == engine_.control().n_groups()) return;
  throw Error(error(Code::kInvalidArgument,
                    "torch's add_param_group() was called on torch_optimizer(), of which Elixir "
                    "does not hear: use Optimizer::add_param_group"));
}

void TorchOptimizer::save(torch::serialize::OutputArchive& /*archive*/) const {
  throw Error(error(Code::kInvalidArgument,
                    "torch::save of an elixir optimizer: its states lie in elixird, and cannot be "
                    "saved yet; release() gives the model back, whose weights can"));
}

void TorchOptimizer::load(torch::serialize::InputArchive& /*archive*/) {
  throw Error(error(Code::kInvalidArgument,
                    "torch::load into an elixir optimizer: its states lie in elixird, and cannot "
                    "be loaded yet"));
}

at::Tensor TorchOptimizer::step(LossClosure closure) {
  check_groups();
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode with_grad(true);
    loss = closure();
    engine_.step(loss);
  } else {
    engine_.step(std::nullopt);
  }
  return loss;
}

void TorchOptimizer::add_group(const std::vector<at::Tensor>& parameters) {
  std::unordered_set<const c10::TensorImpl*> moved;
  for (const at::Tensor& parameter : parameters) moved.insert(parameter.unsafeGetTensorImpl());
  std::erase_if(param_groups_[0].params(), [&](const at::Tensor& parameter) {
    return moved.contains(parameter.unsafeGetTensorImpl());
  });
  const auto number = static_cast<uint32_t>(param_groups_.size());
  param_groups_.emplace_back(parameters, std::make_unique<GroupOptions>(engine_, number));
}

}  // namespace elixir
