// The small model of the torch_*_test.cpp, its data, and what they compare with.

#include <ATen/ATen.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/serialize/archive.h>

#include <sstream>

#include "tests/client/torch_ways.h"

namespace elixir::test {

at::Tensor wave(at::IntArrayRef sizes, int64_t number, at::ScalarType dtype) {
  const at::Tensor at = at::arange(c10::multiply_integers(sizes), at::kDouble);
  return (at * (1.7 + 0.13 * static_cast<double>(number)) + static_cast<double>(number))
      .sin()
      .reshape(sizes)
      .to(dtype);
}

std::shared_ptr<torch::nn::Module> small_net() {
  return torch::nn::Sequential(torch::nn::Linear(8, 16),
                               torch::nn::LayerNorm(torch::nn::LayerNormOptions({16})),
                               torch::nn::Linear(16, 4))
      .ptr();
}

Build net_with(const std::function<void(torch::nn::Module&)>& change) {
  return [change] {
    const auto net = small_net();
    change(*net);
    return net;
  };
}

at::Tensor net_output(torch::nn::Module& net, int64_t number, const Trainer& trainer) {
  return net.as<torch::nn::SequentialImpl>()->forward(wave({6, 8}, number, trainer.dtype));
}

at::Tensor net_loss(torch::nn::Module& net, int64_t number, const Trainer& trainer) {
  return (net_output(net, number, trainer).to(at::kFloat) - wave({6, 4}, number + 100))
      .square()
      .mean();
}

at::Tensor loss_of_first_layer(torch::nn::Module& net, int64_t number, const Trainer& trainer) {
  auto& layers = *net.as<torch::nn::SequentialImpl>();
  const at::Tensor x = wave({6, 8}, number, trainer.dtype);
  return layers[0]->as<torch::nn::Linear>()->forward(x).to(at::kFloat).square().mean();
}

void plain_step(torch::nn::Module& net, Trainer& trainer, int64_t number) {
  trainer.zero_grad();
  net_loss(net, number, trainer).backward();
  trainer.step();
}

void plain_steps(int64_t first, int64_t count, torch::nn::Module& net, Trainer& trainer) {
  for (int64_t i = first; i < first + count; ++i) plain_step(net, trainer, i);
}

Program steps(int64_t count,
              const std::function<void(torch::nn::Module&, Trainer&, int64_t)>& body) {
  return [count, body](torch::nn::Module& net, Trainer& trainer) {
    for (int64_t i = 0; i < count; ++i) {
      trainer.zero_grad();
      body(net, trainer, i);
      trainer.step();
    }
  };
}

at::Tensor parameter(torch::nn::Module& net, const std::string& name) {
  return net.named_parameters()[name];
}

double norm_of(const at::Tensor& values) {
  return values.detach().to(at::kDouble).norm().item<double>();
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return norm_of(a.detach().to(at::kDouble) - b.detach().to(at::kDouble));
}

std::string saved(torch::nn::Module& module) {
  std::ostringstream file;
  torch::serialize::OutputArchive archive;
  module.save(archive);
  archive.save_to(file);
  return file.str();
}

void load(torch::nn::Module& module, const std::string& bytes) {
  std::istringstream file(bytes);
  torch::serialize::InputArchive archive;
  archive.load_from(file);
  module.load(archive);
}

uint32_t count_of(const std::string& words, const std::string& text) {
  uint32_t count = 0;
  for (size_t at = text.find(words); at != text.npos; at = text.find(words, at + 1)) ++count;
  return count;
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& failure) {
    return failure.what();
  }
  return {};
}

}  // namespace elixir::test
