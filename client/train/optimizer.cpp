#include <cmath>
#include <tuple>

#include "base/interrupt.h"
#include "base/throw_error.h"
#include "client/elixir.h"
#include "client/torch_device/cuda_library.h"
#include "client/train/engine.h"
#include "client/train/torch_optimizer.h"

namespace elixir {
namespace {

void require(bool condition, const char* name, double value, const char* range) {
  if (condition) return;
  throw Error(error(Code::kInvalidArgument, "{} = {} is out of range: {}", name, value, range));
}

double checked_lr(double lr) {
  require(std::isfinite(lr) && lr >= 0, "lr", lr, "it must be at least 0");
  return lr;
}

const std::vector<ParamGroup>& checked(const std::vector<ParamGroup>& groups) {
  for (const ParamGroup& group : groups) changed({}, group);
  return groups;
}

template <typename Hyperparameters>
optim::AdamOptions checked(const Hyperparameters& given, UpdateRule rule) {
  optim::AdamOptions options;
  options.rule = rule;
  return changed(
      options,
      {.lr = given.lr, .weight_decay = given.weight_decay, .betas = given.betas, .eps = given.eps});
}

}  // namespace

optim::AdamOptions changed(const optim::AdamOptions& options, const ParamGroup& changes) {
  optim::AdamOptions h = options;
  h.lr = checked_lr(changes.lr.value_or(h.lr));
  h.weight_decay = changes.weight_decay.value_or(h.weight_decay);
  if (changes.betas) std::tie(h.beta1, h.beta2) = *changes.betas;
  h.eps = changes.eps.value_or(h.eps);
  require(h.beta1 >= 0 && h.beta1 < 1, "betas.first", h.beta1, "it must be in [0, 1)");
  require(h.beta2 >= 0 && h.beta2 < 1, "betas.second", h.beta2, "it must be in [0, 1)");
  require(std::isfinite(h.eps) && h.eps >= 0, "eps", h.eps, "it must be at least 0");
  require(std::isfinite(h.weight_decay) && h.weight_decay >= 0, "weight_decay", h.weight_decay,
          "it must be at least 0");
  return h;
}

void set_interrupt_check(std::function<void()> check) { set_interrupt(std::move(check)); }

void prepare_torch(c10::DeviceType type) { throw_if_error(prepare_cuda(type)); }

Optimizer::Optimizer(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}
Optimizer::Optimizer(Optimizer&&) noexcept = default;
Optimizer::~Optimizer() {
  // What a forked child has of it is its parent's: a goodbye from here would end that one's
  // session.
  if (engine_ && engine_->in_child()) (void)engine_.release();
}

Engine& Optimizer::engine() const {
  if (engine_) return *engine_;
  if (released_) throw_released();
  throw Error(error(Code::kInvalidArgument,
                    "the optimizer was moved from: use the one that it was moved to"));
}

Engine& Optimizer::pulled_engine() const {
  Engine& here = engine();
  if (torch_optimizer_) torch_optimizer_->pull();
  return here;
}

void Optimizer::push() const {
  if (torch_optimizer_) torch_optimizer_->push();
}

void Optimizer::release() {
  engine().release_model();
  if (torch_optimizer_) torch_optimizer_->detach();  // schedulers may refer to it still
  engine_.reset();
  released_ = true;
}

torch::optim::Optimizer& Optimizer::torch_optimizer() {
  Engine& here = engine();
  if (!torch_optimizer_) {
    torch_optimizer_ = std::make_unique<TorchOptimizer>(here);
    here.pull_before_fixing([torchs = torch_optimizer_.get()] { torchs->pull(); });
  }
  return *torch_optimizer_;
}

std::vector<ParamGroup> Optimizer::param_groups() const { return pulled_engine().param_groups(); }
void Optimizer::set_param_group(uint32_t group, const ParamGroup& changes) {
  require(group < n_groups(), "group", group, "there are not so many");
  pulled_engine().set_param_group(group, changes);
  push();
}
uint32_t Optimizer::add_param_group(const ParamGroup& group) {
  const uint32_t number = pulled_engine().add_param_group(group);
  if (torch_optimizer_) torch_optimizer_->add_group();
  return number;
}
at::Tensor Optimizer::gradient(const at::Tensor& parameter) const {
  return engine().gradient(parameter);
}
void Optimizer::set_parameter(const at::Tensor& parameter, const at::Tensor& values) {
  engine().set_parameter(parameter, values);
}
void Optimizer::set_parameters(const std::vector<NamedTensor>& values) {
  engine().set_parameters(values);
}
at::Tensor Optimizer::value(const at::Tensor& parameter) { return engine().value(parameter); }
ParameterState Optimizer::state(const at::Tensor& parameter) { return engine().state(parameter); }
void Optimizer::set_clip_norm(std::optional<double> clip_norm) {
  engine().control().set_clip_norm(clip_norm);
}
void Optimizer::step(std::optional<double> loss) { pulled_engine().step(loss); }
void Optimizer::step(const at::Tensor& loss) { pulled_engine().step(loss); }
void Optimizer::zero_grad() { engine().zero_grad(); }
double Optimizer::loss_scale() { return engine().loss_scale(); }
at::Tensor Optimizer::scale(const at::Tensor& loss) { return loss * engine().loss_scale(); }
uint32_t Optimizer::n_groups() const { return engine().control().n_groups(); }
double Optimizer::lr(uint32_t group) const {
  require(group < n_groups(), "group", group, "there are not so many");
  return pulled_engine().control().lr(group);
}
void Optimizer::set_lr(double lr, uint32_t group) {
  require(group < n_groups(), "group", group, "there are not so many");
  pulled_engine().control().set_lr(group, checked_lr(lr));
  push();
}
void Optimizer::set_lr(double lr) {
  pulled_engine().control().set_all_lr(checked_lr(lr));
  push();
}
StepOutcome Optimizer::outcome() { return engine().outcome(engine().control().step()); }
StepOutcome Optimizer::outcome(uint32_t step) { return engine().outcome(step); }
void Optimizer::synchronize() { engine().synchronize(); }
const StepStats& Optimizer::stats() const { return engine().stats(); }
Roofline Optimizer::roofline(uint32_t step) { return engine().roofline(step); }
const PlanSummary& Optimizer::plan() const { return engine().plan(); }
const LaunchEnvironment& Optimizer::environment() const { return engine().environment(); }
uint64_t Optimizer::weights_xxh64() { return engine().weights_xxh64(); }
at::Device Optimizer::device() const { return engine().device(); }
at::Tensor Optimizer::to_device(const at::Tensor& values) { return engine().to_device(values); }

AdamW::AdamW(const ModelTensors& model, const AdamWOptions& hyperparameters, const Options& options,
             const std::vector<ParamGroup>& groups)
    : Optimizer(std::make_unique<Engine>(model, checked(hyperparameters, UpdateRule::kAdamW),
                                         checked(groups), options)) {}
AdamW::AdamW(torch::nn::Module& model, const AdamWOptions& hyperparameters, const Options& options,
             const std::vector<ParamGroup>& groups)
    : AdamW(tensors_of(model), hyperparameters, options, groups) {}

Adam::Adam(const ModelTensors& model, const AdamOptions& hyperparameters, const Options& options,
           const std::vector<ParamGroup>& groups)
    : Optimizer(std::make_unique<Engine>(model, checked(hyperparameters, UpdateRule::kAdam),
                                         checked(groups), options)) {}
Adam::Adam(torch::nn::Module& model, const AdamOptions& hyperparameters, const Options& options,
           const std::vector<ParamGroup>& groups)
    : Adam(tensors_of(model), hyperparameters, options, groups) {}

struct Consistent::Scope {
  std::shared_ptr<ChunkBinding> binding;  // its source is null once the optimizer is gone
};

Consistent::Consistent(const Optimizer& optimizer)
    : scope_(std::make_unique<Scope>(Scope{optimizer.engine().binding()})) {
  const SourceUse source(scope_->binding);
  if (source) source->begin_scope();
}

Consistent::Consistent(Consistent&&) noexcept = default;

Consistent::~Consistent() {
  if (!scope_) return;
  const SourceUse source(scope_->binding);
  if (source) source->end_scope();
}

struct Gathered::Pins {
  std::shared_ptr<ChunkBinding> binding;  // its source is null once the optimizer is gone
  std::vector<uint32_t> chunks;
};

Gathered::Gathered(const std::vector<at::Tensor>& parameters) : pins_(std::make_unique<Pins>()) {
  std::vector<uint32_t>& chunks = pins_->chunks;
  for (const at::Tensor& parameter : parameters) {
    const ChunkStorage* storage = chunk_storage_of(parameter);
    if (storage == nullptr || !storage->binding()->has_source()) continue;  // an ordinary tensor
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
  if (!pins_->binding) return;
  const SourceUse source(pins_->binding);
  if (source) source->hold(chunks, "elixir::gathered()");
}

Gathered::Gathered(Gathered&&) noexcept = default;

Gathered::~Gathered() {
  if (!pins_ || !pins_->binding) return;
  const SourceUse source(pins_->binding);
  if (source) source->let_go(pins_->chunks);
}

bool readable(const c10::Storage& storage) {
  const auto* const chunk = dynamic_cast<const ChunkStorage*>(storage.unsafeGetStorageImpl());
  return chunk == nullptr || chunk->open();
}

bool readable(const at::Tensor& tensor) {
  const c10::TensorImpl* const data = tensor.unsafeGetTensorImpl();
  return !data->has_storage() || readable(data->unsafe_storage());
}

}  // namespace elixir
