// What .grad is once a gradient has gone to elixird, with torch::optim::AdamW beside, and ranks
// that do not all do the same. The rows of docs/training.md name these tests.

#include <ATen/ATen.h>
#include <torch/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <mutex>
#include <vector>

#include "tests/client/torch_ways.h"

namespace elixir::test {
namespace {

class TorchGrad : public InEveryMode {};
IN_EVERY_MODE(TorchGrad);

// The first layer alone, or both.
at::Tensor loss_of_first_layer(torch::nn::Module& net, int64_t number, const Trainer& t) {
  auto& layers = *net.as<torch::nn::SequentialImpl>();
  const at::Tensor x = wave({6, 8}, number, t.dtype);
  return layers[0]->as<torch::nn::Linear>()->forward(x).to(at::kFloat).square().mean();
}

TEST_P(TorchGrad, GradientsOfAnotherType) {
  expect_like_torch(mode(), small_net, [](torch::nn::Module& net, Trainer& t) {
    for (int64_t i = 0; i < 3; ++i) {
      t.zero_grad();
      for (auto& p : net.parameters()) p.mutable_grad() = wave(p.sizes(), i, at::kDouble) * 1e-2;
      if (i != 1) net_loss(net, i, t).backward();
      t.step();
    }
  });
}

TEST_P(TorchGrad, ValuesAddedToAGradient) {
  expect_like_torch(mode(), small_net, [](torch::nn::Module& net, Trainer& t) {
    for (int64_t i = 0; i < 3; ++i) {
      t.zero_grad();
      net_loss(net, i, t).backward();
      const at::Tensor noise = wave({16, 8}, i, t.dtype) * 1e-2;
      parameter(net, "0.weight").grad().add_(noise);
      const at::Tensor row = wave({4}, i, t.dtype) * 1e-2;
      parameter(net, "2.bias").grad().add_(row);
      parameter(net, "2.bias").grad().add_(row[0]);  // broadcast
      noise.zero_();                                 // was copied
      row.zero_();
      if (i == 1) net_loss(net, i + 10, t).backward();
      t.step();
    }
  });
}

TEST_P(TorchGrad, APartOfAGradientIsRefused) {
  const auto refused = [&](const std::function<void(const at::Tensor& grad)>& change) {
    expect_error(mode(), small_net,
                 [&](torch::nn::Module& net, Trainer& t) {
                   net_loss(net, 0, t).backward();
                   change(parameter(net, "0.weight").grad());
                   t.step();
                 },
                 {"'0.weight'", "has gone to elixird"});
  };
  refused([](const at::Tensor& grad) { grad[0].zero_(); });
  refused([](const at::Tensor& grad) { grad[0].add_(at::ones({8}, grad.scalar_type())); });
  refused([](const at::Tensor& grad) { grad.t().add_(at::ones({8, 16}, grad.scalar_type())); });
}

// Zeros are a gradient: decay and momentum move the parameter.
TEST_P(TorchGrad, ZeroedAndThenUnused) {
  expect_like_torch(mode(), small_net, [](torch::nn::Module& net, Trainer& t) {
    for (int64_t i = 0; i < 4; ++i) {
      net_loss(net, i + 50, t).backward();
      net.zero_grad(/*set_to_none=*/false);
      if (i != 2) loss_of_first_layer(net, i, t).backward();
      t.step();
      t.zero_grad();
      loss_of_first_layer(net, i + 20, t).backward();  // and the others are unused
      t.step();
      t.zero_grad();
    }
  });
}

TEST_P(TorchGrad, AGradientOfBeforeTheOptimizer) {
  if (mode().dtype != ComputeType::kFp32) GTEST_SKIP() << "torch's masters have no gradient yet";
  const auto build = [] {
    const auto net = small_net();
    net->as<torch::nn::SequentialImpl>()->forward(wave({6, 8}, 9)).square().mean().backward();
    return net;
  };
  expect_like_torch(mode(), build, [](torch::nn::Module& net, Trainer& t) {
    net_loss(net, 0, t).backward();
    t.step();
    plain_steps(1, 2, net, t);
  });
}

// torch's stay until zero_grad(); Elixir's have gone, and say so.
TEST_P(TorchGrad, AGradientAfterTheStepIsRefused) {
  expect_error(mode(), small_net,
               [](torch::nn::Module& net, Trainer& t) {
                 plain_step(net, t, 0);
                 parameter(net, "2.weight").grad().norm();
               },
               {"'2.weight'", "has gone to elixird"});
}

TEST_P(TorchGrad, ZeroedAfterTheStep) {
  expect_like_torch(mode(), small_net, [](torch::nn::Module& net, Trainer& t) {
    plain_step(net, t, 0);
    for (int64_t i = 1; i < 5; ++i) {
      net.zero_grad(/*set_to_none=*/false);
      if (i != 3) loss_of_first_layer(net, i, t).backward();
      t.step();  // zeros for all others
    }
    plain_steps(5, 2, net, t);
    loss_of_first_layer(net, 9, t);
  });
}

TEST_P(TorchGrad, AGradientThatIsAParameter) {
  expect_like_torch(mode(), small_net, [](torch::nn::Module& net, Trainer& t) {
    const at::Tensor weight = parameter(net, "0.weight");
    weight.register_hook([weight](const at::Tensor&) { return weight.detach(); });
    plain_steps(0, 3, net, t);
  });
}

TEST_P(TorchGrad, AnOldGradientPutBackIsRefused) {
  expect_error(mode(), small_net,
               [](torch::nn::Module& net, Trainer& t) {
                 net_loss(net, 0, t).backward();
                 const at::Tensor first = parameter(net, "0.weight").grad();
                 net.zero_grad();
                 net_loss(net, 1, t).backward();
                 parameter(net, "0.weight").mutable_grad() = first;
                 t.step();
               },
               {"'0.weight'"});
}

TEST_P(TorchGrad, ASumOfAGradientInAHookIsRefused) {
  expect_error(mode(), small_net,
               [](torch::nn::Module& net, Trainer& t) {
                 const at::Tensor last = parameter(net, "2.weight");
                 parameter(net, "0.weight").register_hook([last](const at::Tensor& grad) {
                   return grad + (last.grad() + at::ones_like(last)).sum();
                 });
                 net_loss(net, 0, t).backward();
               },
               {"'2.weight'", "has gone to elixird"});
}

TEST_P(TorchGrad, AGradientOfAFrozenParameterIsRefused) {
  const auto build = [] {
    const auto net = small_net();
    parameter(*net, "0.bias").set_requires_grad(false);
    return net;
  };
  expect_error(mode(), build,
               [](torch::nn::Module& net, Trainer& t) {
                 net_loss(net, 0, t).backward();
                 parameter(net, "0.bias").mutable_grad() = at::zeros({16}, t.dtype);
                 t.step();
               },
               {"'0.bias'", "frozen"});
}

TEST_P(TorchGrad, AHookOnTheAccumulatorOfBeforeIsRefused) {
  struct Hook final : torch::autograd::FunctionPreHook {
    torch::autograd::variable_list operator()(const torch::autograd::variable_list& in) override {
      return in;
    }
  };
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators;
  std::mutex mutex;
  const auto build = [&] {
    const auto net = small_net();
    const auto node = torch::autograd::impl::grad_accumulator(parameter(*net, "2.bias"));
    node->add_pre_hook(std::make_unique<Hook>());
    const std::lock_guard lock(mutex);
    accumulators.push_back(node);
    return net;
  };
  expect_error(mode(), build, [](torch::nn::Module&, Trainer&) {}, {"'2.bias'", "hook"});
}

TEST_P(TorchGrad, RanksOfDataOfTheirOwn) {
  expect_like_torch(mode(), small_net, [](torch::nn::Module& net, Trainer& t) {
    for (int64_t i = 0; i < 4; ++i) {
      t.zero_grad();
      for (const uint32_t rank : t.ranks) {
        const auto share = static_cast<double>(t.ranks.size());
        net_loss(net, 7 * i + 3 * rank, t).div(share).backward();
      }
      t.step();
    }
  });
}

// A gradient on one rank is everyone's; one on no rank leaves the parameter as it is. Every chunk
// stays in a block: with the collective exchange all ranks must gather alike, in backward, too.
TEST_P(TorchGrad, RanksThatUseOtherParameters) {
  Settings settings;
  settings.options.layout.rcache_blocks = 64;
  expect_like_torch(
      mode(), small_net,
      [](torch::nn::Module& net, Trainer& t) {
        for (int64_t i = 0; i < 6; ++i) {
          t.zero_grad();
          for (const uint32_t rank : t.ranks) {
            const at::Tensor both = net_loss(net, 5 * i + rank, t);
            const at::Tensor first = loss_of_first_layer(net, 5 * i + rank, t);
            if (i % 3 == 1 && rank == 1) continue;  // no gradient at all
            const bool whole = i % 3 == 0 && rank == 0;
            (whole ? both : first).div(static_cast<double>(t.ranks.size())).backward();
          }
          t.step();
        }
      },
      settings);
}

}  // namespace
}  // namespace elixir::test
