// FP16 with a dynamic loss scale, clipping, two backward passes a step, a group without decay.

#include <elixir/elixir.h>
#include <torch/torch.h>

#include <iostream>

int main() try {
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(64, 512), torch::nn::GELU(),
                              torch::nn::LayerNorm(torch::nn::LayerNormOptions({512})),
                              torch::nn::Linear(512, 1));
  elixir::Options options;
  options.dtype = elixir::ComputeType::kFp16;
  options.dynamic_loss_scale = elixir::DynamicLossScale{.init_scale = 4096};
  options.clip_norm = 1.0;
  options.accumulate = 2;
  elixir::ParamGroup no_decay{.weight_decay = 0};  // biases and norms
  for (const torch::Tensor& parameter : model->parameters()) {
    if (parameter.dim() == 1) no_decay.parameters.push_back(parameter);
  }
  elixir::AdamW optimizer(*model, {.lr = 1e-3, .weight_decay = 0.1}, options, {no_decay});

  int skipped = 0;
  for (int step = 0; step < 50; ++step) {
    double loss_sum = 0;
    optimizer.zero_grad();
    for (int pass = 0; pass < 2; ++pass) {
      const torch::Tensor x = torch::randn({32, 64});
      const torch::Tensor target = (x.sum(1, /*keepdim=*/true) / 8).sin();
      const torch::Tensor y = model->forward(x.to(torch::kHalf)).to(torch::kFloat);
      const torch::Tensor loss = torch::mse_loss(y, target);
      optimizer.scale(loss / 2).backward();  // the mean of two
      loss_sum += loss.item<double>();
    }
    optimizer.step(loss_sum / 2);
    const elixir::StepOutcome outcome = optimizer.outcome();
    skipped += outcome.skipped ? 1 : 0;
    if (step % 10 == 0) {
      std::cout << "step " << outcome.step << " loss " << outcome.mean_loss << " norm "
                << outcome.grad_norm << " scale " << outcome.loss_scale << std::endl;
    }
  }
  std::cout << "skipped " << skipped << std::endl;
} catch (const elixir::Error& failure) {
  std::cerr << "mixed_precision: " << failure.what() << std::endl;
  return failure.exit_code();
}
