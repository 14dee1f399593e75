#include "tests/client/small_training.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <limits>
#include <mutex>
#include <numeric>
#include <thread>

#include "base/norm_sum.h"
#include "client/regions/region_plan.h"
#include "client/tensors/scalar_type.h"
#include "models/decoder.h"
#include "optim_cpu/master.h"
#include "tests/client/adamw_on_device.h"
#include "tests/models/built.h"
#include "tests/models/tiny_gpt2.h"
#include "tests/support/port.h"

namespace elixir::test {
namespace {

const planner::TransformerConfig kTiny = tiny_gpt2_config({.vocabulary = 64, .heads = 2});

planner::TransformerConfig config_of(const TrainingPlan& plan) {
  if (!plan.model.empty()) return *planner::transformer_config(plan.model);
  planner::TransformerConfig config = kTiny;
  config.family = plan.family;
  if (plan.family == planner::Family::kLlama) config.kv_heads = 1;
  return config;
}

struct Rows {
  at::Tensor inputs, targets;
};

// The same for every split into ranks.
Rows rows_of(const TrainingPlan& plan, int64_t step, int64_t first, int64_t count) {
  const int64_t seq = plan.layers ? kLayerSide : plan.seq;
  const at::Tensor index = at::arange(first, first + count).unsqueeze(1) * 131 + step * 17;
  const at::Tensor position = at::arange(seq + 1).unsqueeze(0);
  const at::Tensor tokens =
      (index + position * position * 3 + position * 7) % config_of(plan).vocabulary;
  return {tokens.narrow(1, 0, seq).contiguous().to(plan.device),
          tokens.narrow(1, 1, seq).contiguous().to(plan.device)};
}

struct Model {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const Rows& rows, int64_t step)> loss;
};

Model make_stack(const TrainingPlan& plan) {
  const auto stack = std::make_shared<Stack>();
  const auto values = [](const at::Tensor& tokens) {
    return tokens.to(at::kFloat) / static_cast<double>(kTiny.vocabulary);
  };
  return {stack, [=](const Rows& rows, int64_t step) {
            const at::Tensor x = values(rows.inputs).to(scalar_type(plan.dtype)).requires_grad_();
            const at::Tensor y =
                stack->forward(x, plan.layers(step), plan.checkpointed).to(at::kFloat);
            return (y * values(rows.targets)).sum();
          }};
}

Model make_decoder(const TrainingPlan& plan) {
  const std::shared_ptr<Decoder> decoder =
      built(config_of(plan), {.seed = 3, .checkpoint_activations = plan.checkpointed});
  decoder->train();
  return {decoder, [decoder](const Rows& rows, int64_t) {
            return decoder->loss(rows.inputs, rows.targets);
          }};
}

Model make_model(const TrainingPlan& plan) {
  Model model = plan.layers ? make_stack(plan) : make_decoder(plan);
  for (const auto& item : model.module->named_parameters()) {
    if (plan.freezes && plan.freezes(item.key())) item.value().requires_grad_(false);
  }
  return model;
}

std::map<std::string, at::Tensor> copies(torch::nn::Module& model) {
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> result;
  for (const auto& item : model.named_parameters()) result[item.key()] = item.value().clone().cpu();
  return result;
}

std::atomic<int> g_jobs{0};

bool is_apart(const TrainingPlan& plan, const std::string& name) {
  return plan.some_apart && (name.ends_with("bias") || name.starts_with("layer1"));
}

std::vector<ParamGroup> groups_of(torch::nn::Module& model, const TrainingPlan& plan) {
  if (!plan.some_apart) return {};
  ParamGroup group{{}, plan.lr / 2, 0.0};
  for (const auto& item : model.named_parameters()) {
    const bool trained = item.value().requires_grad();
    if (trained && is_apart(plan, item.key())) group.parameters.push_back(item.value());
  }
  if (group.parameters.empty()) return {};
  return {group};
}

std::unique_ptr<Optimizer> make_optimizer(torch::nn::Module& model, const TrainingPlan& plan,
                                          const Options& runtime) {
  const AdamWOptions options{.lr = plan.lr, .weight_decay = kWeightDecay};
  const std::vector<ParamGroup> groups = groups_of(model, plan);
  if (!plan.make_device) return std::make_unique<AdamW>(model, options, runtime, groups);
  const optim::AdamOptions hyperparameters{options.lr,  options.betas.first,  options.betas.second,
                                           options.eps, options.weight_decay, UpdateRule::kAdamW};
  return std::make_unique<AdamWOnDevice>(model, hyperparameters, runtime,
                                         plan.make_device(runtime.environment->rank), groups);
}

// Those of one backward pass of a rank.
Rows micro_rows(const TrainingPlan& plan, int64_t step, uint32_t micro, uint32_t rank) {
  return rows_of(plan, step * plan.accumulate + micro, rank * plan.batch, plan.batch);
}

double factor_of(const TrainingPlan& plan, uint32_t rank, int64_t step) {
  return plan.factor ? plan.factor(rank, step) : 1;
}

void note(TrainingOutcome& outcome, Optimizer& optimizer) {
  const StepOutcome step = optimizer.outcome();
  outcome.losses.push_back(step.mean_loss);
  outcome.grad_norms.push_back(step.grad_norm);
  outcome.loss_scales.push_back(step.loss_scale);
  outcome.skipped += step.skipped ? 1 : 0;
}

// Returns the sum of the losses of the step's backward passes.
double run_step(const TrainingPlan& plan, const Model& model, Optimizer& optimizer, uint32_t rank,
                int64_t step) {
  if (plan.empty_backward) {
    const Rows rows = micro_rows(plan, step, 0, rank);
    model.loss({rows.targets, rows.inputs}, step).backward();
    optimizer.zero_grad();
  }
  double loss_sum = 0;
  for (uint32_t micro = 0; micro < plan.accumulate; ++micro) {
    const at::Tensor loss = model.loss(micro_rows(plan, step, micro, rank), step);
    loss_sum += loss.item<double>();
    optimizer.scale(loss * factor_of(plan, rank, step)).backward();
  }
  return loss_sum;
}

TrainingOutcome run_rank(const TrainingPlan& plan, const LaunchEnvironment& environment) {
  const uint32_t rank = environment.rank;
  at::set_num_threads(1);
  const Model model = make_model(plan);
  Options runtime = plan;
  runtime.layout = plan;
  runtime.environment = environment;
  runtime.accumulate = plan.declares ? plan.accumulate : 1;
  const std::unique_ptr<Optimizer> optimizer = make_optimizer(*model.module, plan, runtime);
  TrainingOutcome outcome;
  if (plan.begins) plan.begins(*model.module);
  if (plan.looks) plan.looks(*optimizer, rank, optimizer->steps());
  for (auto step = static_cast<int64_t>(optimizer->steps()); step < plan.steps; ++step) {
    optimizer->step(run_step(plan, model, *optimizer, rank, step));
    note(outcome, *optimizer);
    if (plan.looks) plan.looks(*optimizer, rank, optimizer->steps());
  }
  outcome.stats = optimizer->stats();
  outcome.plan = optimizer->plan();
  outcome.weights = copies(*model.module);
  outcome.weights_xxh64 = optimizer->weights_xxh64();
  return outcome;
}

// The FP32 value of a sum that is rounded to the type.
float rounded(float sum, ComputeType type) {
  if (type == ComputeType::kBf16) return static_cast<float>(at::BFloat16(sum));
  if (type == ComputeType::kFp16) return static_cast<float>(at::Half(sum));
  return sum;
}

// One parameter and its states, on the host whatever the model's device, updated by the scalar
// reference.
class ReferenceParameter {
 public:
  ReferenceParameter(std::string name, at::Tensor tensor, const TrainingPlan& plan)
      : name_(std::move(name)), tensor_(std::move(tensor)), type_(plan.dtype) {
    rounds_ = plan.ranks > 1 && plan.exchange == shm::Exchange::kCollective;
    options_.lr = is_apart(plan, name_) ? plan.lr / 2 : plan.lr;
    options_.weight_decay = is_apart(plan, name_) ? 0 : kWeightDecay;
    const at::NoGradGuard no_grad;
    const auto numel = static_cast<size_t>(tensor_.numel());
    exp_avg_.assign(numel, 0.0f);
    exp_avg_sq_.assign(numel, 0.0f);
    master_.assign(numel, 0);
    const at::Tensor initial = tensor_.detach().clone();
    param_ = at::empty_like(initial, initial.options().dtype(scalar_type(plan.dtype)));
    optim::load_master(type_, initial.const_data_ptr<float>(), numel, param_.mutable_data_ptr(),
                       master_.data());
    tensor_.set_data(param_.to(plan.device, /*non_blocking=*/false, /*copy=*/true));
  }

  bool frozen() const { return !tensor_.requires_grad(); }

  at::Tensor take_gradient() {
    at::Tensor grad = tensor_.grad();
    tensor_.mutable_grad().reset();
    return grad.defined() ? grad.to(at::kFloat).contiguous().cpu() : grad;
  }

  // One round of the ranks' gradients, in their order; all are undefined, or none.
  void add_round(const std::vector<at::Tensor>& grads) {
    if (!grads[0].defined()) return;
    std::vector<const float*> values;
    for (const at::Tensor& grad : grads) values.push_back(grad.const_data_ptr<float>());
    const bool first = grad_sum_.empty();
    grad_sum_.resize(exp_avg_.size());
    for (size_t i = 0; i < grad_sum_.size(); ++i) {
      float sum = values[0][i];
      for (size_t rank = 1; rank < values.size(); ++rank) sum += values[rank][i];
      if (rounds_) sum = rounded(sum, type_);
      grad_sum_[i] = first ? sum : grad_sum_[i] + sum;
    }
  }

  // By the definition in optim_cpu/gradients.h.
  void add_squares(NormSum& total) const {
    for (size_t leaf = 0; leaf < grad_sum_.size(); leaf += 64) {
      double lanes[16] = {};
      for (size_t i = leaf; i < std::min(leaf + 64, grad_sum_.size()); ++i) {
        const double sum = grad_sum_[i];
        if (std::isfinite(sum)) {
          lanes[i % 16] += sum * sum;
        } else {
          ++total.nonfinite;
        }
      }
      for (size_t width = 8; width > 0; width /= 2) {
        for (size_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
      }
      add_leaf(total, lanes[0]);
    }
  }

  void update(double scale) {
    if (grad_sum_.empty()) return;
    const optim::AdamStep step = optim::make_adam_step(options_, ++updates_, scale);
    optim::UpdateSpan span;
    span.type = type_;
    span.grad_sum = grad_sum_.data();
    span.param = param_.mutable_data_ptr();
    span.master = master_.data();
    span.moments[0] = exp_avg_.data();
    span.moments[1] = exp_avg_sq_.data();
    span.numel = exp_avg_.size();
    optim::adam_update(optim::Isa::kScalar, span, step);
    const at::NoGradGuard no_grad;
    tensor_.copy_(param_);
  }
  void forget_rounds() { grad_sum_.clear(); }

  const std::string& name() const { return name_; }
  std::vector<float> masters() const {
    std::vector<float> values(exp_avg_.size());
    optim::read_master(type_, param_.const_data_ptr(), master_.data(), values.size(),
                       values.data());
    return values;
  }

 private:
  std::string name_;
  at::Tensor tensor_;  // the model's
  at::Tensor param_;   // the same values, on the host
  ComputeType type_;
  bool rounds_ = false;
  optim::AdamOptions options_;
  uint64_t updates_ = 0;
  std::vector<float> exp_avg_, exp_avg_sq_, grad_sum_;
  std::vector<uint32_t> master_;  // room for FP32 masters or for low halves
};

uint64_t hash_masters(std::vector<ReferenceParameter>& parameters) {
  std::vector<ReferenceParameter*> sorted;
  for (ReferenceParameter& parameter : parameters) {
    if (!parameter.frozen()) sorted.push_back(&parameter);
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const auto* a, const auto* b) { return a->name() < b->name(); });
  std::vector<float> all;
  for (const ReferenceParameter* parameter : sorted) {
    const std::vector<float> values = parameter->masters();
    all.insert(all.end(), values.begin(), values.end());
  }
  return XXH64(all.data(), all.size() * sizeof(float), 0);
}

bool is_peer_lost(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    return error.code() == Code::kPeerLost;
  } catch (...) {
    return false;
  }
}

}  // namespace

Stack::Stack(int n) {
  static std::mutex one_generator;  // for all ranks' threads
  const std::lock_guard lock(one_generator);
  torch::manual_seed(5);
  const auto options = torch::nn::LinearOptions(kLayerSide, kLayerSide).bias(false);
  for (int i = 0; i < n; ++i) {
    layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(options)));
  }
}

at::Tensor Stack::forward(at::Tensor x, const std::vector<int>& order, bool checkpointed) {
  for (const int i : order) {
    const std::function<at::Tensor(const at::Tensor&)> apply =
        [layer = layers[static_cast<size_t>(i)]](const at::Tensor& in) {
          return at::tanh(layer.ptr()->forward(in));
        };
    x = checkpointed ? checkpoint(apply, x) : apply(x);
  }
  return x;
}

std::vector<int> in_order(int n) {
  std::vector<int> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

uint64_t largest_parameter_numel(const TrainingPlan& plan) {
  if (plan.layers) return kLayerNumel;
  uint64_t largest = 0;
  for (const planner::NamedShape& shape : planner::transformer_parameters(config_of(plan))) {
    largest = std::max(largest, shape.numel());
  }
  return largest;
}

void run_ranks(uint32_t ranks, const std::function<void(const LaunchEnvironment&)>& rank) {
  const std::string job = "small-" + std::to_string(g_jobs++);
  const uint16_t port = unused_port();
  std::vector<std::exception_ptr> failures(ranks);
  std::vector<std::thread> threads;
  for (uint32_t number = 0; number < ranks; ++number) {
    threads.emplace_back([&, number] {
      try {
        rank({number, ranks, number, ranks, job, "test", "127.0.0.1", port});
      } catch (...) {
        failures[number] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::exception_ptr first;  // what befell a rank, before what the others heard of its end
  for (const std::exception_ptr& failure : failures) {
    if (failure && (!first || is_peer_lost(first))) first = failure;
  }
  if (first) std::rethrow_exception(first);
}

TrainingOutcome train_through_elixird(const TrainingPlan& plan) {
  std::vector<TrainingOutcome> outcomes(plan.ranks);
  run_ranks(plan.ranks, [&](const LaunchEnvironment& environment) {
    outcomes[environment.rank] = run_rank(plan, environment);
  });
  for (const TrainingOutcome& outcome : outcomes) {
    if (outcome.weights_xxh64 != outcomes[0].weights_xxh64) outcomes[0].weights_xxh64 = 0;
  }
  return outcomes[0];
}

// Gradients of all rounds and ranks of a step. Returns the mean over ranks of their losses.
double reference_backwards(const TrainingPlan& plan, const Model& model,
                           std::vector<ReferenceParameter>& parameters, int64_t step,
                           double loss_scale) {
  for (ReferenceParameter& parameter : parameters) parameter.forget_rounds();
  std::vector<double> losses(plan.ranks);
  for (uint32_t micro = 0; micro < plan.accumulate; ++micro) {
    std::vector<std::vector<at::Tensor>> grads(parameters.size());
    for (uint32_t rank = 0; rank < plan.ranks; ++rank) {
      const at::Tensor loss = model.loss(micro_rows(plan, step, micro, rank), step);
      (loss * factor_of(plan, rank, step) * loss_scale).backward();
      losses[rank] += loss.item<double>();
      for (size_t i = 0; i < parameters.size(); ++i) {
        grads[i].push_back(parameters[i].take_gradient());
      }
    }
    for (size_t i = 0; i < parameters.size(); ++i) parameters[i].add_round(grads[i]);
  }
  return std::accumulate(losses.begin(), losses.end(), 0.0) / plan.ranks;
}

// Infinite where an element is not finite.
double reference_norm(const std::vector<ReferenceParameter>& parameters, double scale) {
  NormSum squares = {};
  for (const ReferenceParameter& parameter : parameters) parameter.add_squares(squares);
  if (squares.nonfinite > 0) return std::numeric_limits<double>::infinity();
  return std::sqrt(to_double(squares)) * scale;
}

TrainingOutcome train_with_scalar_reference(const TrainingPlan& plan) {
  at::set_num_threads(1);
  set_region_plan({});  // regions keep nothing
  const Model model = make_model(plan);
  std::vector<ReferenceParameter> parameters;
  for (const auto& item : model.module->named_parameters()) {
    parameters.emplace_back(item.key(), item.value(), plan);
  }
  TrainingOutcome outcome;
  const DynamicLossScale dynamic = plan.dynamic_loss_scale.value_or(DynamicLossScale{});
  double loss_scale = plan.dynamic_loss_scale ? dynamic.init_scale : plan.loss_scale;
  uint32_t good_steps = 0;  // in a row, since the scale changed last
  for (int64_t step = 0; step < plan.steps; ++step) {
    outcome.losses.push_back(reference_backwards(plan, model, parameters, step, loss_scale));
    outcome.loss_scales.push_back(loss_scale);
    double scale = 1.0 / (plan.ranks * loss_scale);
    const double norm = reference_norm(parameters, scale);
    outcome.grad_norms.push_back(norm);
    const bool skipped = std::isinf(norm) && (plan.clip_norm || plan.dynamic_loss_scale);
    if (plan.clip_norm) scale *= std::min(1.0, *plan.clip_norm / (norm + 1e-6));
    if (skipped) {
      ++outcome.skipped;
    } else {
      for (ReferenceParameter& parameter : parameters) parameter.update(scale);
    }
    if (!plan.dynamic_loss_scale) continue;
    good_steps = skipped ? 0 : good_steps + 1;
    if (skipped) loss_scale *= dynamic.backoff_factor;
    if (good_steps < dynamic.growth_interval) continue;
    loss_scale *= dynamic.growth_factor;
    good_steps = 0;
  }
  outcome.weights = copies(*model.module);
  outcome.weights_xxh64 = hash_masters(parameters);
  return outcome;
}

}  // namespace elixir::test
