// A module of your own that Elixir looks at before it runs, and for which it chooses chunks, blocks
// and homes by itself. The module is built without memory: its values go to elixird one by one.

#include <torch/torch.h>

#include <iostream>

#include "client/elixir.h"
#include "client/profile/profile.h"
#include "client/tensors/meta_init.h"
#include "client/train/choose_plan.h"

struct Net : torch::nn::Module {
  Net() {
    hidden = register_module("hidden", torch::nn::Linear(64, 4096));
    out = register_module("out", torch::nn::Linear(4096, 1));
  }
  torch::Tensor loss(const torch::Tensor& x) {
    return torch::mse_loss(out(torch::gelu(hidden(x))), x.sum(1, /*keepdim=*/true).sin());
  }
  torch::nn::Linear hidden{nullptr}, out{nullptr};
};

std::shared_ptr<Net> build() {
  const elixir::MetaInit without_memory;
  return std::make_shared<Net>();
}

int main() try {
  torch::manual_seed(1);
  const auto model = build();
  elixir::RuntimeOptions runtime;
  runtime.device_memory_bytes = 8 << 20;  // on a GPU: leave it out, and all there is counts
  const auto loss_on = [&](at::Device device) {
    return model->loss(torch::randn({32, 64}, device));
  };
  const auto profile = elixir::profile_or_measure(*model, loss_on, {.model = "net", .tokens = 32});
  const auto environment = elixir::value_or_throw(elixir::read_launch_environment());
  const auto planned = elixir::value_or_throw(elixir::choose_plan(profile, runtime, environment));
  if (planned) runtime.plan = elixir::training_plan(profile, planned->plan);
  elixir::AdamW optimizer(*model, {.lr = 1e-3}, runtime);

  for (int step = 0; step < 100; ++step) {
    const torch::Tensor loss = model->loss(torch::randn({32, 64}));
    loss.backward();
    optimizer.step(loss.item<double>());
  }
  std::cout << "loss " << optimizer.mean_loss() << ", planned for "
            << (planned ? planned->plan.predicted.step_s * 1e3 : 0.0) << " ms a step" << std::endl;
} catch (const elixir::Error& failure) {
  std::cerr << "planned_model: " << failure.what() << std::endl;
  return failure.exit_code();
}
