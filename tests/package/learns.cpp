// A program of somebody else: what it needs of Elixir is one header and one library.

#include <elixir/elixir.h>
#include <torch/torch.h>

#include <iostream>

int main() try {
  elixir::prepare_torch(at::kCPU);
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(16, 64), torch::nn::GELU(),
                              torch::nn::Linear(64, 1));
  const torch::Tensor x = torch::randn({32, 16}), target = x.sum(1, /*keepdim=*/true).sin();
  elixir::AdamW optimizer(*model, {.lr = 1e-2}, {.layout = {.rcache_blocks = 2}});
  for (int step = 0; step < 100; ++step) {
    const torch::Tensor y =
        elixir::checkpoint([&](const torch::Tensor& in) { return model->forward(in); }, x);
    const torch::Tensor loss = torch::mse_loss(y, target);
    loss.backward();
    optimizer.step(loss);
    if (step % 33 == 0) std::cout << "loss " << optimizer.mean_loss() << std::endl;
  }
  const auto scope = elixir::gathered(model->parameters());
  std::cout << "exchange " << static_cast<int>(optimizer.plan().exchange) << " first weight "
            << *model->parameters()[0].data_ptr<float>() << std::endl;
} catch (const elixir::Error& failure) {
  std::cerr << "learns: " << elixir::code_name(failure.code()) << ": " << failure.what()
            << std::endl;
  return failure.exit_code();
}
