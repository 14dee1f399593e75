#include <cmath>

#include "base/throw_error.h"
#include "client/elixir.h"
#include "client/torch_device/cuda_library.h"
#include "client/train/engine.h"

namespace elixir {
namespace {

void require(bool condition, const char* name, double value, const char* range) {
  if (condition) return;
  throw Error(error(Code::kInvalidArgument, "{} = {} is out of range: {}", name, value, range));
}

optim::AdamOptions checked(const optim::AdamOptions& h) {
  require(std::isfinite(h.lr) && h.lr >= 0, "lr", h.lr, "it must be at least 0");
  require(h.beta1 >= 0 && h.beta1 < 1, "betas.first", h.beta1, "it must be in [0, 1)");
  require(h.beta2 >= 0 && h.beta2 < 1, "betas.second", h.beta2, "it must be in [0, 1)");
  require(std::isfinite(h.eps) && h.eps >= 0, "eps", h.eps, "it must be at least 0");
  require(std::isfinite(h.weight_decay) && h.weight_decay >= 0, "weight_decay", h.weight_decay,
          "it must be at least 0");
  return h;
}

double checked_lr(double lr) {
  require(std::isfinite(lr) && lr >= 0, "lr", lr, "it must be at least 0");
  return lr;
}

const std::vector<ParamGroup>& checked(const std::vector<ParamGroup>& groups) {
  for (const ParamGroup& group : groups) {
    if (group.lr) checked_lr(*group.lr);
    const double decay = group.weight_decay.value_or(0);
    require(std::isfinite(decay) && decay >= 0, "weight_decay", decay, "it must be at least 0");
  }
  return groups;
}

template <typename Hyperparameters>
optim::AdamOptions checked(const Hyperparameters& given, UpdateRule rule) {
  return checked(
      {given.lr, given.betas.first, given.betas.second, given.eps, given.weight_decay, rule});
}

}  // namespace

void prepare_torch(c10::DeviceType type) { throw_if_error(prepare_cuda(type)); }

Optimizer::Optimizer(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}
Optimizer::Optimizer(Optimizer&&) noexcept = default;
Optimizer::~Optimizer() {
  // What a forked child has of it is its parent's: a goodbye from here would end that one's
  // session.
  if (engine_ && engine_->in_child()) (void)engine_.release();
}

void Optimizer::step(std::optional<double> loss) { engine_->step(loss); }
void Optimizer::step(const at::Tensor& loss) { engine_->step(loss); }
void Optimizer::zero_grad() { engine_->zero_grad(); }
double Optimizer::loss_scale() { return engine_->loss_scale(); }
at::Tensor Optimizer::scale(const at::Tensor& loss) { return loss * engine_->loss_scale(); }
uint32_t Optimizer::n_groups() const { return engine_->control().n_groups(); }
double Optimizer::lr(uint32_t group) const {
  require(group < n_groups(), "group", group, "there are not so many");
  return engine_->control().lr(group);
}
void Optimizer::set_lr(double lr, uint32_t group) {
  require(group < n_groups(), "group", group, "there are not so many");
  engine_->control().set_lr(group, checked_lr(lr));
}
void Optimizer::set_lr(double lr) { engine_->control().set_all_lr(checked_lr(lr)); }
StepOutcome Optimizer::outcome() { return engine_->outcome(engine_->control().step()); }
StepOutcome Optimizer::outcome(uint32_t step) { return engine_->outcome(step); }
void Optimizer::synchronize() { engine_->synchronize(); }
const StepStats& Optimizer::stats() const { return engine_->stats(); }
Roofline Optimizer::roofline(uint32_t step) { return engine_->roofline(step); }
const PlanSummary& Optimizer::plan() const { return engine_->plan(); }
const LaunchEnvironment& Optimizer::environment() const { return engine_->environment(); }
uint64_t Optimizer::weights_xxh64() { return engine_->weights_xxh64(); }
at::Device Optimizer::device() const { return engine_->device(); }
at::Tensor Optimizer::to_device(const at::Tensor& values) { return engine_->to_device(values); }

AdamW::AdamW(torch::nn::Module& model, const AdamWOptions& hyperparameters, const Options& options,
             const std::vector<ParamGroup>& groups)
    : Optimizer(std::make_unique<Engine>(model, checked(hyperparameters, UpdateRule::kAdamW),
                                         checked(groups), options)) {}

Adam::Adam(torch::nn::Module& model, const AdamOptions& hyperparameters, const Options& options,
           const std::vector<ParamGroup>& groups)
    : Optimizer(std::make_unique<Engine>(model, checked(hyperparameters, UpdateRule::kAdam),
                                         checked(groups), options)) {}

struct Gathered::Pins {
  std::shared_ptr<ChunkBinding> binding;  // its source is null once the optimizer is gone
  std::vector<uint32_t> chunks;
};

Gathered::Gathered(const std::vector<at::Tensor>& parameters) : pins_(std::make_unique<Pins>()) {
  std::vector<uint32_t>& chunks = pins_->chunks;
  for (const at::Tensor& parameter : parameters) {
    const ChunkStorage* storage = chunk_storage_of(parameter);
    if (storage == nullptr || storage->source() == nullptr) continue;  // an ordinary tensor
    if (pins_->binding && pins_->binding != storage->binding()) {
      throw Error(
          error(Code::kInvalidArgument,
                "elixir::gathered() of parameters of two optimizers: use one scope for each"));
    }
    pins_->binding = storage->binding();
    if (std::find(chunks.begin(), chunks.end(), storage->chunk()) == chunks.end()) {
      chunks.push_back(storage->chunk());
    }
  }
  if (pins_->binding) pins_->binding->source->hold(chunks, "elixir::gathered()");
}

Gathered::Gathered(Gathered&&) noexcept = default;

Gathered::~Gathered() {
  if (pins_ && pins_->binding && pins_->binding->source != nullptr) {
    pins_->binding->source->let_go(pins_->chunks);
  }
}

}  // namespace elixir
