// What .grad is once a gradient has gone to elixird, with torch::optim::AdamW beside, and ranks
// that do not all do the same. The rows of docs/training.md name these tests.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
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

TEST_P(TorchGrad, AHookOnTheAccumulatorOfAfter) {
  struct Doubles final : torch::autograd::FunctionPreHook {
    torch::autograd::variable_list operator()(const torch::autograd::variable_list& in) override {
      return {in[0] * 2};
    }
  };
  expect_like_torch(mode(), small_net, [](torch::nn::Module& net, Trainer& t) {
    const auto node = torch::autograd::impl::grad_accumulator(parameter(net, "2.bias"));
    node->add_pre_hook(std::make_unique<Doubles>());
    plain_steps(0, 3, net, t);
  });
}

// Elixir's own, which a program catches: here of a gradient that cannot be taken.
TEST_P(TorchGrad, AGradientThatAnErrorLostIsMissed) {
  struct Spoils final : torch::autograd::PostAccumulateGradHook {
    explicit Spoils(const bool* spoils) : now(spoils) {}
    void operator()(const torch::autograd::Variable& tensor) override {
      if (*now) tensor.mutable_grad() = at::zeros({3}, tensor.options());
    }
    const bool* now;
  };
  thread_local bool spoils = false;  // a rank's
  const auto build = [] {
    const auto net = small_net();
    torch::autograd::impl::set_post_acc_grad_hooks(parameter(*net, "0.weight"),
                                                   std::make_unique<Spoils>(&spoils));
    return net;
  };
  expect_like_torch(mode(), build, [](torch::nn::Module& net, Trainer& t) {
    plain_step(net, t, 0);
    if (t.elixir()) {
      const auto lost = ::testing::HasSubstr("a gradient of step 2 was lost");
      t.zero_grad();
      spoils = true;
      EXPECT_THAT(message_of([&] { net_loss(net, 50, t).backward(); }),
                  ::testing::HasSubstr("'0.weight'"));
      spoils = false;
      EXPECT_THAT(message_of([&] { t.step(); }), lost);
      EXPECT_THAT(message_of([&] { net_loss(net, 51, t).backward(); }), lost);
      EXPECT_THAT(message_of([&] { t.step(); }), lost);
    }
    plain_steps(1, 2, net, t);  // zero_grad() is first
  });
}

// Where torch would add to what the step before left.
TEST_P(TorchGrad, AStepWithoutZeroGradBeginsAnew) {
  ::testing::internal::CaptureStderr();
  expect_like_torch(mode(), small_net, [](torch::nn::Module& net, Trainer& t) {
    for (int64_t i = 0; i < 4; ++i) {
      net_loss(net, i, t).backward();
      t.step();
      if (!t.elixir()) t.zero_grad();
    }
  });
  EXPECT_EQ(count_of("event=old_gradients step=2 ", ::testing::internal::GetCapturedStderr()),
            mode().ranks);
}

TEST_P(TorchGrad, AnAssignedGradientWithoutZeroGradIsForOneStep) {
  ::testing::internal::CaptureStderr();
  expect_like_torch(mode(), small_net, [](torch::nn::Module& net, Trainer& t) {
    parameter(net, "0.bias").mutable_grad() = wave({16}, 3, t.dtype);
    t.step();
    if (!t.elixir()) t.zero_grad();
    t.step();
  });
  EXPECT_EQ(count_of("event=old_gradients step=2 ", ::testing::internal::GetCapturedStderr()),
            mode().ranks);
}

// An error that comes before they are taken.
TEST_P(TorchGrad, AStepInsideGatheredLosesNoGradient) {
  expect_like_torch(mode(), small_net, [](torch::nn::Module& net, Trainer& t) {
    parameter(net, "0.bias").mutable_grad() = wave({16}, 3, t.dtype);
    if (t.elixir()) {
      const Gathered held = gathered({parameter(net, "0.weight")});
      EXPECT_THAT(message_of([&] { t.step(); }), ::testing::HasSubstr("end its scope first"));
    }
    t.step();
  });
}

struct Tokens : torch::nn::Module {
  explicit Tokens(bool sparse) {
    table = register_module(
        "table", torch::nn::Embedding(torch::nn::EmbeddingOptions(20, 8).sparse(sparse)));
    out = register_module("out", torch::nn::Linear(8, 3));
  }
  at::Tensor loss(int64_t number) {
    const at::Tensor words = (at::arange(12) * (number + 3)) % 20;
    return out(table(words)).to(at::kFloat).square().mean();
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear out{nullptr};
};

// torch's own AdamW takes no sparse gradient, so its run has a dense one.
TEST_P(TorchGrad, SparseGradients) {
  std::atomic<uint32_t> built{0};
  const uint32_t ranks = mode().ranks;
  const auto build = [&] { return std::make_shared<Tokens>(built++ < ranks); };
  expect_like_torch(mode(), build, [](torch::nn::Module& net, Trainer& t) {
    for (int64_t i = 0; i < 3; ++i) {
      t.zero_grad();
      net.as<Tokens>()->loss(i).backward();
      net.as<Tokens>()->loss(i + 10).backward();
      t.step();
    }
  });
}

TEST_P(TorchGrad, BackwardInAnotherThread) {
  expect_like_torch(mode(), small_net, [](torch::nn::Module& net, Trainer& t) {
    for (int64_t i = 0; i < 3; ++i) {
      t.zero_grad();
      const at::Tensor loss = net_loss(net, i, t);
      std::thread([&] { loss.backward(); }).join();
      t.step();
    }
  });
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

// A mixture of experts whose ranks take different ones, in every pass of a step. With the host
// exchange each would wait for the sum of gradients that the other one never makes.
struct ExpertsImpl : torch::nn::Module {
  ExpertsImpl() {
    for (const char* name : {"left", "right"}) {
      experts.push_back(register_module(name, torch::nn::Linear(24, 24)));
    }
  }
  at::Tensor loss_of(size_t expert, int64_t number, at::ScalarType dtype) {
    return experts[expert](wave({5, 24}, number, dtype)).to(at::kFloat).square().mean();
  }
  std::vector<torch::nn::Linear> experts;
};

void train_experts(torch::nn::Module& net, Trainer& t) {
  auto& experts = dynamic_cast<ExpertsImpl&>(net);
  for (int64_t i = 0; i < 4; ++i) {
    t.zero_grad();
    for (const uint32_t rank : t.ranks) {
      for (int64_t pass = 0; pass < 3; ++pass) {
        const int64_t number = 31 * i + 7 * pass + rank;
        at::Tensor loss = experts.loss_of(rank, number, t.dtype);
        if (i == 2 && pass == 1) loss = loss + experts.loss_of(1 - rank, number, t.dtype);
        loss.div(static_cast<double>(t.ranks.size())).backward();
      }
    }
    t.step();
  }
}

TEST_P(TorchGrad, RanksThatUseOtherParametersInSeveralPasses) {
  const Build build = [] { return std::make_shared<ExpertsImpl>(); };
  for (const uint32_t accumulate : {1u, 3u}) {
    Settings settings;
    settings.options.accumulate = accumulate;
    settings.options.layout.chunk_numel = 24 * 24 + 64;  // a weight
    if (mode().exchange == shm::Exchange::kCollective) {
      return expect_error(mode(), build, train_experts, {"Every rank must run the same operators"},
                          settings);
    }
    expect_like_torch(mode(), build, train_experts, settings);
  }
}

}  // namespace
}  // namespace elixir::test
