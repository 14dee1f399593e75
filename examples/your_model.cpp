// A module of your own, trained through elixird. Nothing in the module knows of Elixir.

#include <elixir/elixir.h>
#include <torch/torch.h>

#include <iostream>

struct Net : torch::nn::Module {
  Net() {
    hidden = register_module("hidden", torch::nn::Linear(64, 512));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({512})));
    out = register_module("out", torch::nn::Linear(512, 1));
  }
  torch::Tensor forward(const torch::Tensor& x) { return out(torch::gelu(norm(hidden(x)))); }
  torch::nn::Linear hidden{nullptr}, out{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};

int main() try {
  torch::manual_seed(1);
  const auto model = std::make_shared<Net>();
  elixir::AdamW optimizer(*model, {.lr = 1e-3});

  double loss_value = 0;
  for (int step = 0; step < 200; ++step) {
    const torch::Tensor x = torch::randn({32, 64});
    const torch::Tensor target = (x.sum(1, /*keepdim=*/true) / 8).sin();
    optimizer.zero_grad();
    const torch::Tensor loss = torch::mse_loss(model->forward(x), target);
    loss.backward();
    loss_value = loss.item<double>();
    optimizer.step(loss_value);
    if (step % 50 == 0) std::cout << "step " << step << " loss " << loss_value << std::endl;
  }
  std::cout << "loss " << loss_value << ", bias of the last layer " << model->out->bias
            << std::endl;
} catch (const elixir::Error& failure) {
  std::cerr << "your_model: " << failure.what() << std::endl;
  return failure.exit_code();
}
