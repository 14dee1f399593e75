// A module of your own that Elixir looks at before it runs, and for which it chooses chunks, blocks
// and where states live by itself. The module is built without memory: its values go to elixird one
// by one.

#include <elixir/elixir.h>
#include <torch/torch.h>

#include <iostream>

struct Net : torch::nn::Module {
  Net() {
    hidden = register_module("hidden", torch::nn::Linear(64, 4096));
    out = register_module("out", torch::nn::Linear(4096, 1));
  }
  torch::Tensor loss(const torch::Tensor& x) {
    return torch::mse_loss(out(torch::gelu(hidden(x))), (x.sum(1, /*keepdim=*/true) / 8).sin());
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
  elixir::Options options;
  options.device_memory_bytes = 8 << 20;  // on a GPU: leave it out, and all there is counts
  const auto loss_on = [&](at::Device device) {
    return model->loss(torch::randn({32, 64}, device));
  };
  options.plan = elixir::plan(*model, loss_on, /*tokens=*/32, options);
  elixir::AdamW optimizer(*model, {.lr = 1e-3}, options);

  for (int step = 0; step < 100; ++step) {
    optimizer.zero_grad();
    const torch::Tensor loss = model->loss(torch::randn({32, 64}));
    loss.backward();
    optimizer.step(loss.item<double>());
  }
  std::cout << "loss " << optimizer.mean_loss() << ", planned for "
            << optimizer.plan().predicted_step_s * 1e3 << " ms a step" << std::endl;
} catch (const elixir::Error& failure) {
  std::cerr << "planned_model: " << failure.what() << std::endl;
  return failure.exit_code();
}
