// A rank's training as a library, for tests/e2e/init_process_group_test.py: Python calls it in a
// process that uses torch.distributed, too.

#include <ATen/ATen.h>
#include <elixir/elixir.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <exception>
#include <iostream>

namespace {

constexpr double kLr = 1e-2;

template <typename OptimizerType>
void train(torch::nn::Linear& layer, OptimizerType& optimizer) {
  for (int step = 0; step < 4; ++step) {
    const at::Tensor x = at::arange(48).add(step).sin().reshape({6, 8});
    layer(x).square().mean().backward();
    optimizer.step();
    optimizer.zero_grad();
  }
}

torch::nn::Linear new_layer() {
  at::manual_seed(5);
  return torch::nn::Linear(8, 8);
}

}  // namespace

// How many ranks have trained together, as torch does alone; 0: it has gone wrong.
extern "C" __attribute__((visibility("default"))) int elixir_train() try {
  elixir::Options options;
  options.layout.exchange = elixir::shm::Exchange::kCollective;
  torch::nn::Linear ours = new_layer(), torchs = new_layer();
  elixir::AdamW optimizer(*ours, {.lr = kLr}, options);
  train(ours, optimizer);
  torch::optim::AdamW its(torchs->parameters(), torch::optim::AdamWOptions(kLr));
  train(torchs, its);
  const at::NoGradGuard no_grad;
  const bool equal = (ours->weight - torchs->weight).norm().item<double>() <= 1e-5;
  return equal ? static_cast<int>(optimizer.environment().world_size) : 0;
} catch (const std::exception& failure) {
  std::cerr << "elixir_train: " << failure.what() << std::endl;
  return 0;
}
