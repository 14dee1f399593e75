// A rank with two optimizers, as a GAN has them, for tests/e2e/ranks_test.py: what the starter says
// of the rank is all that they know. It ends well where both have trained as torch's do.
// two_optimizers [host|collective]

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <iostream>
#include <string>

#include "client/elixir.h"

namespace {

constexpr double kLr = 1e-2;

struct Pair {
  Pair() {
    at::manual_seed(5);
    maker = torch::nn::Linear(8, 8);
    critic = torch::nn::Linear(8, 4);
  }
  torch::nn::Linear maker{nullptr}, critic{nullptr};
};

template <typename OptimizerType>
void train(Pair& pair, OptimizerType& of_maker, OptimizerType& of_critic) {
  for (int step = 0; step < 4; ++step) {
    const at::Tensor x = at::arange(48).add(step).sin().reshape({6, 8});
    pair.critic(pair.maker(x)).square().mean().backward();
    of_maker.step();
    of_maker.zero_grad();
    of_critic.zero_grad();
    pair.critic(pair.maker(x).detach()).sub(1).square().mean().backward();
    of_critic.step();
    of_critic.zero_grad();
  }
}

double distance(const torch::nn::Linear& a, const torch::nn::Linear& b) {
  const at::NoGradGuard no_grad;
  return (a->weight - b->weight).norm().item<double>() + (a->bias - b->bias).norm().item<double>();
}

}  // namespace

int main(int argc, char** argv) try {
  elixir::Options options;
  options.layout.exchange = argc > 1 && std::string(argv[1]) == "collective"
                                ? elixir::shm::Exchange::kCollective
                                : elixir::shm::Exchange::kHost;
  Pair ours, torchs;
  elixir::AdamW of_maker(*ours.maker, {.lr = kLr}, options);
  elixir::AdamW of_critic(*ours.critic, {.lr = kLr}, options);
  train(ours, of_maker, of_critic);
  torch::optim::AdamW its_maker(torchs.maker->parameters(), torch::optim::AdamWOptions(kLr));
  torch::optim::AdamW its_critic(torchs.critic->parameters(), torch::optim::AdamWOptions(kLr));
  train(torchs, its_maker, its_critic);
  const double maker = distance(ours.maker, torchs.maker);
  const double critic = distance(ours.critic, torchs.critic);
  std::cout << "ranks " << of_maker.environment().world_size << " from torch's: " << maker << " "
            << critic << std::endl;
  return maker <= 1e-5 && critic <= 1e-5 ? 0 : 1;
} catch (const elixir::Error& failure) {
  std::cerr << "two_optimizers: " << failure.what() << std::endl;
  return failure.exit_code();
}
