#include "models/plain_train.h"

#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "models/train_inputs.h"
#include "models/weight_decay.h"

namespace elixir {
namespace {

// Constant: what stands for a dynamic one.
double loss_scale_of(const TrainOptions& options) {
  return options.run.dynamic_loss_scale ? 1024 : options.run.loss_scale;
}

// AdamW on FP32 masters; in FP32 the parameters are their own masters.
class MasterAdamW {
 public:
  MasterAdamW(torch::nn::Module& model, const TrainOptions& options)
      : parameters_(model.parameters()),
        masters_(make_masters(parameters_)),
        loss_scale_(loss_scale_of(options)),
        clip_norm_(options.run.clip_norm),
        adamw_(groups_of(masters_, options),
               torch::optim::AdamWOptions(options.adamw.lr)
                   .betas({options.adamw.betas.first, options.adamw.betas.second})
                   .eps(options.adamw.eps)
                   .weight_decay(options.adamw.weight_decay)) {}

  // Uses up the parameters' gradients, which are those of loss * loss_scale. Returns their norm
  // before clipping, NaN without.
  double step(double lr) {
    for (torch::optim::OptimizerParamGroup& group : adamw_.param_groups()) {
      static_cast<torch::optim::AdamWOptions&>(group.options()).lr(lr);
    }
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      at::Tensor& gradient = parameters_[i].mutable_grad();
      at::Tensor scaled = gradient.to(at::kFloat);
      if (loss_scale_ != 1) scaled.div_(loss_scale_);
      gradient.reset();
      masters_[i].mutable_grad() = scaled;
    }
    double grad_norm = NAN;
    if (clip_norm_) grad_norm = torch::nn::utils::clip_grad_norm_(masters_, *clip_norm_);
    adamw_.step();
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (!parameters_[i].is_same(masters_[i])) parameters_[i].copy_(masters_[i]);
      masters_[i].mutable_grad().reset();
    }
    return grad_norm;
  }

 private:
  // With decay, and without.
  static std::vector<torch::optim::OptimizerParamGroup> groups_of(
      const std::vector<at::Tensor>& masters, const TrainOptions& options) {
    std::vector<at::Tensor> decayed, others;
    for (const at::Tensor& master : masters) {
      (options.decay_all || is_decayed(master) ? decayed : others).push_back(master);
    }
    auto without = std::make_unique<torch::optim::AdamWOptions>(options.adamw.lr);
    without->betas({options.adamw.betas.first, options.adamw.betas.second})
        .eps(options.adamw.eps)
        .weight_decay(0);
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::move(decayed));
    if (!others.empty()) groups.emplace_back(std::move(others), std::move(without));
    return groups;
  }
  static std::vector<at::Tensor> make_masters(const std::vector<at::Tensor>& parameters) {
    std::vector<at::Tensor> masters = parameters;
    for (at::Tensor& master : masters) {
      if (master.scalar_type() == at::kFloat) continue;
      master = master.detach().to(at::kFloat).requires_grad_();
    }
    return masters;
  }

  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> masters_;
  double loss_scale_;
  std::optional<double> clip_norm_;
  torch::optim::AdamW adamw_;
};

}  // namespace

Status plain_train(Decoder& model, const TokenData& data, const TrainOptions& options,
                   const OnStep& on_step) {
  const int64_t rows = options.model.batch;
  model.train();
  MasterAdamW optimizer(model, options);
  const auto step_tokens = static_cast<double>(rows * options.run.accumulate * options.model.seq);
  const auto accumulate = static_cast<double>(options.run.accumulate);
  for (int64_t step = 0; step < options.steps; ++step) {
    const int64_t start_ns = monotonic_ns();
    double loss_sum = 0;
    for (uint32_t k = 0; k < options.run.accumulate; ++k) {
      const Result<Batch> batch = read_batch(data, step, k * rows, rows);
      if (!batch.ok()) return batch.status();
      const at::Tensor loss = model.loss(batch->inputs, batch->targets);
      (loss * (loss_scale_of(options) / accumulate)).backward();
      loss_sum += loss.item<double>();
    }
    const double grad_norm = optimizer.step(lr_at(options, step));

    const double seconds = seconds_since(start_ns);
    StepReport report;
    report.stats.step = report.outcome.step = static_cast<uint32_t>(step + 1);
    report.outcome.mean_loss = loss_sum / accumulate;
    report.outcome.grad_norm = grad_norm;
    report.outcome.loss_scale = loss_scale_of(options);
    report.tokens_per_s = step_tokens / seconds;
    report.step_ms = 1e3 * seconds;
    report.device_bytes = report.model_state_bytes = plain_state_bytes(options);
    ELIXIR_RETURN_IF_ERROR(on_step(report));
  }
  return {};
}

uint64_t plain_state_bytes(const TrainOptions& options) {
  // Weight and gradient in the compute type, exp_avg and exp_avg_sq, and the master beside them.
  const uint64_t master = options.run.dtype == ComputeType::kFp32 ? 0 : 4;
  return planner::transformer_numel(options.config) *
         (2 * element_bytes(options.run.dtype) + 8 + master);
}

}  // namespace elixir
