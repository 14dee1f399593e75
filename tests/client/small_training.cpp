#include "tests/client/small_training.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/optim/adamw.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <limits>
#include <thread>

#include "base/norm_sum.h"
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
  return plan.model.empty() ? kTiny : *planner::transformer_config(plan.model);
}

struct Rows {
  at::Tensor inputs, targets;
};

// The same for every split into ranks.
Rows rows_of(const TrainingPlan& plan, int64_t step, int64_t first, int64_t count) {
  const int64_t seq = plan.seq;
  const at::Tensor index = at::arange(first, first + count).unsqueeze(1) * 131 + step * 17;
  const at::Tensor position = at::arange(seq + 1).unsqueeze(0);
  const at::Tensor tokens =
      (index + position * position * 3 + position * 7) % config_of(plan).vocabulary;
  return {tokens.narrow(1, 0, seq).contiguous().to(plan.device),
          tokens.narrow(1, 1, seq).contiguous().to(plan.device)};
}

std::shared_ptr<Decoder> make_model(const TrainingPlan& plan) {
  const std::shared_ptr<Decoder> model = built(
      config_of(plan),
      {.seed = 3, .dropout = plan.dropout, .checkpoint_activations = plan.checkpoint_activations});
  model->train();
  for (const auto& item : model->named_parameters()) {
    const bool frozen = !plan.freezes.empty() && item.key().starts_with(plan.freezes);
    if (frozen) item.value().requires_grad_(false);
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

bool is_bias(const std::string& name) { return name.ends_with("bias"); }

ParamGroup biases_of(torch::nn::Module& model, const TrainingPlan& plan) {
  ParamGroup group{{}, plan.lr / 2, 0.0};
  for (const auto& item : model.named_parameters()) {
    if (is_bias(item.key())) group.parameters.push_back(item.value());
  }
  return group;
}

std::unique_ptr<Optimizer> make_optimizer(torch::nn::Module& model, const TrainingPlan& plan,
                                          const Options& runtime) {
  const AdamWOptions options{.lr = plan.lr, .weight_decay = kWeightDecay};
  if (!plan.make_device) {
    std::vector<ParamGroup> groups;
    if (plan.biases_apart) groups.push_back(biases_of(model, plan));
    return std::make_unique<AdamW>(model, options, runtime, groups);
  }
  const optim::AdamOptions hyperparameters{options.lr,  options.betas.first,  options.betas.second,
                                           options.eps, options.weight_decay, UpdateRule::kAdamW};
  return std::make_unique<AdamWOnDevice>(model, hyperparameters, runtime,
                                         plan.make_device(runtime.environment->rank));
}

void run_backwards(const TrainingPlan& plan, Decoder& model, Optimizer& optimizer,
                   const Rows& rows) {
  if (plan.empty_backward) {
    model.loss(rows.targets, rows.inputs).backward();
    optimizer.zero_grad();
  }
  for (int64_t i = 1; i < plan.backwards; ++i) model.loss(rows.inputs, rows.targets).backward();
}

// Those of one backward pass of a rank.
Rows micro_rows(const TrainingPlan& plan, int64_t step, uint32_t micro, uint32_t rank) {
  return rows_of(plan, step * plan.accumulate + micro, rank * plan.batch, plan.batch);
}

void note(TrainingOutcome& outcome, Optimizer& optimizer) {
  const StepOutcome step = optimizer.outcome();
  outcome.losses.push_back(step.mean_loss);
  outcome.grad_norms.push_back(step.grad_norm);
  outcome.loss_scales.push_back(step.loss_scale);
  outcome.skipped += step.skipped ? 1 : 0;
  if (step.step < 3) return;
  outcome.most_h2d_bytes = std::max(outcome.most_h2d_bytes, optimizer.stats().h2d_bytes);
  outcome.least_h2d_bytes = std::min(outcome.least_h2d_bytes, optimizer.stats().h2d_bytes);
}

TrainingOutcome run_rank(const TrainingPlan& plan, const LaunchEnvironment& environment) {
  const uint32_t rank = environment.rank;
  at::set_num_threads(1);
  const auto model = make_model(plan);
  Options runtime;
  runtime.layout.gpu_state_share = plan.gpu_state_share;
  runtime.layout.exchange = plan.exchange;
  runtime.dtype = plan.dtype;
  runtime.device = plan.device;
  runtime.layout.chunk_numel = plan.chunk_numel;
  runtime.layout.rcache_blocks = plan.rcache_blocks;
  runtime.workers = plan.workers;
  runtime.environment = environment;
  runtime.update = plan.update;
  runtime.layout.spare_slots = plan.spare_slots;
  runtime.layout.swing_stride = plan.swing_stride;
  runtime.clip_norm = plan.clip_norm;
  runtime.accumulate = plan.declares ? plan.accumulate : 1;
  runtime.loss_scale = plan.loss_scale;
  runtime.dynamic_loss_scale = plan.dynamic_loss_scale;
  runtime.link = plan.link;
  runtime.strategy = plan.strategy;
  runtime.offload = plan.offload;
  runtime.load_from = plan.load_from;
  runtime.load_states = plan.load_states;
  const std::unique_ptr<Optimizer> made = make_optimizer(*model, plan, runtime);
  Optimizer& optimizer = *made;
  TrainingOutcome outcome;
  if (plan.looks) plan.looks(optimizer, rank, optimizer.steps());
  for (auto step = static_cast<int64_t>(optimizer.steps()); step < plan.steps; ++step) {
    if (plan.leaves_out && plan.leaves_out(step)) continue;
    double loss_value = 0;
    for (uint32_t micro = 0; micro < plan.accumulate; ++micro) {
      const Rows rows = micro_rows(plan, step, micro, rank);
      run_backwards(plan, *model, optimizer, rows);
      at::Tensor loss = model->loss(rows.inputs, rows.targets);
      loss_value += loss.item<double>();
      if (plan.overflows && plan.overflows(rank, step)) {
        loss = loss * std::numeric_limits<float>::infinity();
      }
      optimizer.scale(loss).backward();
    }
    optimizer.step(loss_value);
    note(outcome, optimizer);
    if (plan.looks) plan.looks(optimizer, rank, optimizer.steps());
  }
  outcome.stats = optimizer.stats();
  outcome.plan = optimizer.plan();
  outcome.weights = copies(*model);
  outcome.weights_xxh64 = optimizer.weights_xxh64();
  return outcome;
}

// One parameter and its states, on the host whatever the model's device, updated by the scalar
// reference.
class ReferenceParameter {
 public:
  ReferenceParameter(std::string name, at::Tensor tensor, const TrainingPlan& plan)
      : name_(std::move(name)), tensor_(std::move(tensor)), type_(plan.dtype) {
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

  // One round of the ranks' gradients, in their order.
  void add_round(const std::vector<at::Tensor>& grads) {
    const bool first = grad_sum_.empty();
    grad_sum_.resize(exp_avg_.size());
    for (size_t i = 0; i < grad_sum_.size(); ++i) {
      float sum = element(grads[0], i);
      for (size_t rank = 1; rank < grads.size(); ++rank) sum += element(grads[rank], i);
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

  void update(const optim::AdamStep& step) {
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
  at::Tensor& tensor() { return tensor_; }
  std::vector<float> masters() const {
    std::vector<float> values(exp_avg_.size());
    optim::read_master(type_, param_.const_data_ptr(), master_.data(), values.size(),
                       values.data());
    return values;
  }

 private:
  float element(const at::Tensor& grad, size_t i) const {
    if (type_ == ComputeType::kFp32) return grad.const_data_ptr<float>()[i];
    if (type_ == ComputeType::kBf16) return grad.const_data_ptr<at::BFloat16>()[i];
    return grad.const_data_ptr<at::Half>()[i];
  }

  std::string name_;
  at::Tensor tensor_;  // the model's
  at::Tensor param_;   // the same values, on the host
  ComputeType type_;
  std::vector<float> exp_avg_, exp_avg_sq_, grad_sum_;
  std::vector<uint32_t> master_;  // room for FP32 masters or for low halves
};

uint64_t hash_masters(std::vector<ReferenceParameter>& parameters) {
  std::vector<ReferenceParameter*> sorted;
  for (ReferenceParameter& parameter : parameters) sorted.push_back(&parameter);
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

uint64_t largest_parameter_numel() {
  uint64_t largest = 0;
  for (const planner::NamedShape& shape : planner::transformer_parameters(kTiny)) {
    largest = std::max(largest, shape.numel());
  }
  return largest;
}

uint64_t model_numel() { return planner::transformer_numel(kTiny); }

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

// One step of the reference: gradients of all rounds and ranks, then the update. Returns the sum of
// the losses.
double reference_backwards(const TrainingPlan& plan, Decoder& model,
                           std::vector<ReferenceParameter>& parameters, int64_t step,
                           double loss_scale) {
  double loss_sum = 0;
  for (ReferenceParameter& parameter : parameters) parameter.forget_rounds();
  for (uint32_t micro = 0; micro < plan.accumulate; ++micro) {
    std::vector<std::vector<at::Tensor>> grads(parameters.size());
    for (uint32_t rank = 0; rank < plan.ranks; ++rank) {
      const Rows rows = micro_rows(plan, step, micro, rank);
      const at::Tensor loss = model.loss(rows.inputs, rows.targets);
      (loss * loss_scale).backward();
      loss_sum += loss.item<double>();
      for (size_t i = 0; i < parameters.size(); ++i) {
        grads[i].push_back(parameters[i].tensor().grad().contiguous().cpu());
        parameters[i].tensor().mutable_grad().reset();
      }
    }
    for (size_t i = 0; i < parameters.size(); ++i) parameters[i].add_round(grads[i]);
  }
  return loss_sum;
}

TrainingOutcome train_with_scalar_reference(const TrainingPlan& plan) {
  at::set_num_threads(1);
  const auto model = make_model(plan);
  std::vector<ReferenceParameter> parameters;
  for (const auto& item : model->named_parameters()) {
    parameters.emplace_back(item.key(), item.value(), plan);
  }
  TrainingOutcome outcome;
  for (int64_t step = 0; step < plan.steps; ++step) {
    if (plan.leaves_out && plan.leaves_out(step)) continue;
    const double loss_scale = plan.scale_of_step.empty()
                                  ? plan.loss_scale
                                  : plan.scale_of_step[static_cast<size_t>(step)];
    outcome.losses.push_back(reference_backwards(plan, *model, parameters, step, loss_scale) /
                             plan.ranks);
    double scale = 1.0 / (plan.ranks * loss_scale);
    NormSum squares = {};
    for (const ReferenceParameter& parameter : parameters) parameter.add_squares(squares);
    const double norm = squares.nonfinite > 0 ? std::numeric_limits<double>::infinity()
                                              : std::sqrt(to_double(squares)) * scale;
    outcome.grad_norms.push_back(norm);
    if (plan.clip_norm) scale *= std::min(1.0, *plan.clip_norm / (norm + 1e-6));
    for (ReferenceParameter& parameter : parameters) {
      optim::AdamOptions options;
      const bool apart = plan.biases_apart && is_bias(parameter.name());
      options.lr = apart ? plan.lr / 2 : plan.lr;
      options.weight_decay = apart ? 0 : kWeightDecay;
      parameter.update(optim::make_adam_step(options, outcome.losses.size(), scale));
    }
  }
  outcome.weights = copies(*model);
  outcome.weights_xxh64 = hash_masters(parameters);
  return outcome;
}

TrainingOutcome train_with_torch(const TrainingPlan& plan) {
  at::set_num_threads(1);
  const auto model = make_model(plan);
  torch::optim::AdamW optimizer(model->parameters(),
                                torch::optim::AdamWOptions(plan.lr).weight_decay(kWeightDecay));
  TrainingOutcome outcome;
  for (int64_t step = 0; step < plan.steps; ++step) {
    const Rows rows = rows_of(plan, step, 0, plan.batch);
    optimizer.zero_grad();
    const at::Tensor loss = model->loss(rows.inputs, rows.targets);
    loss.backward();
    optimizer.step();
    outcome.losses.push_back(loss.item<double>());
  }
  outcome.weights = copies(*model);
  return outcome;
}

}  // namespace elixir::test
