// The training of bits_test.py in C++: prints the hash of the weights after ten steps.
//
//   plain_net fp32|bf16

#include <torch/torch.h>

#include <iostream>
#include <string>

#include "client/elixir.h"

int main(int argc, char** argv) try {
  if (argc != 2) return 2;
  const bool bf16 = argv[1] == std::string("bf16");
  torch::set_num_threads(1);
  torch::manual_seed(1);
  const torch::nn::Linear first(16, 32);  // before the other: they draw their values in this order
  const torch::nn::Linear last(32, 4);
  torch::nn::Sequential model(first, torch::nn::LayerNorm(torch::nn::LayerNormOptions({32})),
                              torch::nn::ReLU(), last);
  elixir::Options options;
  if (bf16) options.dtype = elixir::ComputeType::kBf16;
  options.clip_norm = 0.5;
  elixir::AdamW optimizer(*model, {.lr = 1e-2}, options);
  for (int step = 0; step < 10; ++step) {
    const at::Tensor inputs =
        torch::sin(torch::arange(6 * 16, torch::kFloat).view({6, 16}) * 0.3 + step);
    const at::Tensor outputs = model->forward(inputs.to(bf16 ? torch::kBFloat16 : torch::kFloat));
    (outputs.to(torch::kFloat) - inputs.slice(1, 0, 4)).square().mean().backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  std::cout << std::hex << optimizer.weights_xxh64() << std::endl;
} catch (const elixir::Error& failure) {
  std::cerr << "plain_net: " << failure.what() << std::endl;
  return failure.exit_code();
}
