#include "models/plain_train.h"

#include <torch/optim/adamw.h>

#include <vector>

#include "base/clock.h"
#include "models/train_inputs.h"

namespace elixir {
namespace {

// AdamW on FP32 masters; in FP32 the parameters are their own masters.
class MasterAdamW {
 public:
  MasterAdamW(Gpt2& model, const TrainOptions& options)
      : parameters_(model.parameters()),
        masters_(make_masters(parameters_)),
        loss_scale_(options.loss_scale),
        adamw_(masters_, torch::optim::AdamWOptions(options.lr)
                             .betas({options.beta1, options.beta2})
                             .eps(options.eps)
                             .weight_decay(options.weight_decay)) {}

  // Uses up the parameters' gradients, which are those of loss * loss_scale.
  void step(double lr) {
    static_cast<torch::optim::AdamWOptions&>(adamw_.param_groups()[0].options()).lr(lr);
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      at::Tensor& gradient = parameters_[i].mutable_grad();
      at::Tensor scaled = gradient.to(at::kFloat);
      if (loss_scale_ != 1) scaled.div_(loss_scale_);
      gradient.reset();
      masters_[i].mutable_grad() = scaled;
    }
    adamw_.step();
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (!parameters_[i].is_same(masters_[i])) parameters_[i].copy_(masters_[i]);
      masters_[i].mutable_grad().reset();
    }
  }

 private:
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
  torch::optim::AdamW adamw_;
};

}  // namespace

Status plain_train(Gpt2& model, const TokenData& data, const TrainOptions& options,
                   const OnStep& on_step) {
  model.train();
  MasterAdamW optimizer(model, options);
  const auto step_tokens = static_cast<double>(options.batch * options.seq);
  for (int64_t step = 0; step < options.steps; ++step) {
    const int64_t start_ns = monotonic_ns();
    const Result<Batch> batch = read_batch(data, step, 0, options.batch);
    if (!batch.ok()) return batch.status();
    const at::Tensor loss = model.loss(batch->inputs, batch->targets);
    (loss * options.loss_scale).backward();
    optimizer.step(lr_at(options, step));

    const double seconds = seconds_since(start_ns);
    ELIXIR_RETURN_IF_ERROR(on_step({.step = step + 1,
                                    .loss = loss.item<double>(),
                                    .tokens_per_s = step_tokens / seconds,
                                    .step_ms = 1e3 * seconds,
                                    .device_bytes = plain_state_bytes(options),
                                    .model_state_bytes = plain_state_bytes(options)}));
  }
  return {};
}

uint64_t plain_state_bytes(const TrainOptions& options) {
  // Weight and gradient in the compute type, exp_avg and exp_avg_sq, and the master beside them.
  const uint64_t master = options.dtype == ComputeType::kFp32 ? 0 : 4;
  return static_cast<uint64_t>(gpt2_numel(options.model)) *
         (2 * element_bytes(options.dtype) + 8 + master);
}

}  // namespace elixir
