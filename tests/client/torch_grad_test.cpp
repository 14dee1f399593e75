// What .grad is once a gradient has gone to elixird, with torch::optim::AdamW beside, and ranks
// that do not all do the same. The rows of docs/torch_ways.md name these tests.

#include <ATen/ATen.h>
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

#include "client/tensors/torch_version.h"
#include "tests/client/torch_ways.h"
#include "tests/support/matchers.h"

namespace elixir::test {
namespace {

using torch::nn::Module;

class TorchGrad : public InEveryMode {};
IN_EVERY_MODE(TorchGrad);

TEST_P(TorchGrad, GradientsOfAnotherType) {
  like_torch(steps(3, [](Module& net, Trainer& t, int64_t i) {
    for (auto& p : net.parameters()) p.mutable_grad() = wave(p.sizes(), i, at::kDouble) * 1e-2;
    if (i != 1) net_loss(net, i, t).backward();
  }));
}

TEST_P(TorchGrad, ValuesAddedToAGradient) {
  like_torch(steps(3, [](Module& net, Trainer& t, int64_t i) {
    net_loss(net, i, t).backward();
    const at::Tensor noise = wave({16, 8}, i, t.dtype) * 1e-2;
    parameter(net, "0.weight").grad().add_(noise);
    const at::Tensor row = wave({4}, i, t.dtype) * 1e-2;
    parameter(net, "2.bias").grad().add_(row);
    parameter(net, "2.bias").grad().add_(row[0]);  // broadcast
    noise.zero_();                                 // was copied
    row.zero_();
    if (i == 1) net_loss(net, i + 10, t).backward();
  }));
}

TEST_P(TorchGrad, APartOfAGradientIsRefused) {
  const std::function<void(const at::Tensor& grad)> changes[] = {
      [](const at::Tensor& grad) { grad[0].zero_(); },
      [](const at::Tensor& grad) { grad[0].add_(at::ones({8}, grad.scalar_type())); },
      [](const at::Tensor& grad) {
        grad.t().add_(at::ones({8, 16}, grad.scalar_type()));
      },
  };
  for (const auto& change : changes) {
    refused({"'0.weight'", "has gone to elixird"}, [&](Module& net, Trainer& t) {
      net_loss(net, 0, t).backward();
      change(parameter(net, "0.weight").grad());
      t.step();
    });
  }
  // As large as the whole of it.
  const auto square = [] {
    return torch::nn::Sequential(torch::nn::Linear(8, 8), torch::nn::Linear(8, 4)).ptr();
  };
  refused({"'0.weight'", "has gone to elixird"}, {.build = square}, [](Module& net, Trainer& t) {
    net_loss(net, 0, t).backward();
    const at::Tensor grad = parameter(net, "0.weight").grad();
    grad.t().add_(at::ones({8, 8}, grad.scalar_type()));
    t.step();
  });
}

// Zeros are a gradient: decay and momentum move the parameter.
TEST_P(TorchGrad, ZeroedAndThenUnused) {
  like_torch([](Module& net, Trainer& t) {
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
  const Build build = net_with([](Module& net) {
    net.as<torch::nn::SequentialImpl>()->forward(wave({6, 8}, 9)).square().mean().backward();
  });
  like_torch({.build = build}, [](Module& net, Trainer& t) {
    net_loss(net, 0, t).backward();
    t.step();
    plain_steps(1, 2, net, t);
  });
}

// torch's stay until zero_grad(); Elixir's have gone, and say so.
TEST_P(TorchGrad, AGradientAfterTheStepIsRefused) {
  refused({"'2.weight'", "has gone to elixird"}, [](Module& net, Trainer& t) {
    plain_step(net, t, 0);
    parameter(net, "2.weight").grad().norm();
  });
}

TEST_P(TorchGrad, ZeroedAfterTheStep) {
  like_torch([](Module& net, Trainer& t) {
    plain_step(net, t, 0);
    for (int64_t i = 1; i < 5; ++i) {
      net.zero_grad(/*set_to_none=*/false);
      if (i != 3) loss_of_first_layer(net, i, t).backward();
      t.step();  // zeros for all others
    }
    net.zero_grad();
    loss_of_first_layer(net, 8, t).backward();
    t.step();  // the others have no gradient
    plain_steps(5, 2, net, t);
    loss_of_first_layer(net, 9, t);
  });
}

TEST_P(TorchGrad, AGradientThatIsAParameter) {
  like_torch([](Module& net, Trainer& t) {
    const at::Tensor weight = parameter(net, "0.weight");
    weight.register_hook([weight](const at::Tensor&) { return weight.detach(); });
    plain_steps(0, 3, net, t);
  });
}

TEST_P(TorchGrad, AnOldGradientPutBackIsRefused) {
  refused({"'0.weight'"}, [](Module& net, Trainer& t) {
    net_loss(net, 0, t).backward();
    const at::Tensor first = parameter(net, "0.weight").grad();
    net.zero_grad();
    net_loss(net, 1, t).backward();
    parameter(net, "0.weight").mutable_grad() = first;
    t.step();
  });
}

TEST_P(TorchGrad, ASumOfAGradientInAHookIsRefused) {
  refused({"'2.weight'", "has gone to elixird"}, [](Module& net, Trainer& t) {
    const at::Tensor last = parameter(net, "2.weight");
    parameter(net, "0.weight").register_hook([last](const at::Tensor& grad) {
      return grad + (last.grad() + at::ones_like(last)).sum();
    });
    net_loss(net, 0, t).backward();
  });
}

TEST_P(TorchGrad, AGradientOfAFrozenParameterIsRefused) {
  const Build build =
      net_with([](Module& net) { parameter(net, "0.bias").set_requires_grad(false); });
  refused({"'0.bias'", "frozen"}, {.build = build}, [](Module& net, Trainer& t) {
    net_loss(net, 0, t).backward();
    parameter(net, "0.bias").mutable_grad() = at::zeros({16}, t.dtype);
    t.step();
  });
}

TEST_P(TorchGrad, AHookOnTheAccumulatorOfBeforeIsRefused) {
  struct Hook final : torch::autograd::FunctionPreHook {
    torch::autograd::variable_list operator()(const torch::autograd::variable_list& in) override {
      return in;
    }
  };
  std::vector<AccumulatorPointer> accumulators;
  std::mutex mutex;
  const Build build = net_with([&](Module& net) {
    const auto node = torch::autograd::impl::grad_accumulator(parameter(net, "2.bias"));
    node->add_pre_hook(std::make_unique<Hook>());
    const std::lock_guard lock(mutex);
    accumulators.push_back(node);
  });
  refused({"'2.bias'", "hook"}, {.build = build}, [](Module&, Trainer&) {});
}

TEST_P(TorchGrad, AHookOnTheAccumulatorOfAfter) {
  struct Doubles final : torch::autograd::FunctionPreHook {
    torch::autograd::variable_list operator()(const torch::autograd::variable_list& in) override {
      return {in[0] * 2};
    }
  };
  like_torch([](Module& net, Trainer& t) {
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
  const Build build = net_with([](Module& net) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameter(net, "0.weight"),
                                                   std::make_unique<Spoils>(&spoils));
  });
  like_torch({.build = build}, [](Module& net, Trainer& t) {
    plain_step(net, t, 0);
    if (t.elixir()) {
      const auto lost = HasSubstr("a gradient of step 2 was lost");
      t.zero_grad();
      spoils = true;
      EXPECT_THAT(message_of([&] { net_loss(net, 50, t).backward(); }), HasSubstr("'0.weight'"));
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
  like_torch([](Module& net, Trainer& t) {
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
  like_torch([](Module& net, Trainer& t) {
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
  like_torch([](Module& net, Trainer& t) {
    parameter(net, "0.bias").mutable_grad() = wave({16}, 3, t.dtype);
    if (t.elixir()) {
      const Gathered held = gathered({parameter(net, "0.weight")});
      EXPECT_THAT(message_of([&] { t.step(); }), HasSubstr("end its scope first"));
    }
    t.step();
  });
}

struct Tokens : Module {
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
  like_torch({.build = build}, steps(3, [](Module& net, Trainer&, int64_t i) {
               net.as<Tokens>()->loss(i).backward();
               net.as<Tokens>()->loss(i + 10).backward();
             }));
}

TEST_P(TorchGrad, BackwardInAnotherThread) {
  like_torch(steps(3, [](Module& net, Trainer& t, int64_t i) {
    const at::Tensor loss = net_loss(net, i, t);
    std::thread([&] { loss.backward(); }).join();
  }));
}

TEST_P(TorchGrad, RanksOfDataOfTheirOwn) {
  like_torch(steps(4, [](Module& net, Trainer& t, int64_t i) {
    for (const uint32_t rank : t.ranks) {
      const auto share = static_cast<double>(t.ranks.size());
      net_loss(net, 7 * i + 3 * rank, t).div(share).backward();
    }
  }));
}

// A gradient on one rank is everyone's; one on no rank leaves the parameter as it is. Every chunk
// stays in a block: with the collective exchange all ranks must gather alike, in backward, too.
TEST_P(TorchGrad, RanksThatUseOtherParameters) {
  const auto six_steps = steps(6, [](Module& net, Trainer& t, int64_t i) {
    for (const uint32_t rank : t.ranks) {
      const at::Tensor both = net_loss(net, 5 * i + rank, t);
      const at::Tensor first = loss_of_first_layer(net, 5 * i + rank, t);
      if (i % 3 == 1 && rank == 1) continue;  // no gradient at all
      const bool whole = i % 3 == 0 && rank == 0;
      (whole ? both : first).div(static_cast<double>(t.ranks.size())).backward();
    }
  });
  like_torch({.options = {.layout = {.rcache_blocks = 64}}}, six_steps);
}

// A mixture of experts whose ranks take different ones, in every pass of a step. With the host
// exchange each would wait for the sum of gradients that the other one never makes.
struct ExpertsImpl : Module {
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

void train_experts(Module& net, Trainer& t, int64_t step) {
  auto& experts = dynamic_cast<ExpertsImpl&>(net);
  for (const uint32_t rank : t.ranks) {
    for (int64_t pass = 0; pass < 3; ++pass) {
      const int64_t number = 31 * step + 7 * pass + rank;
      at::Tensor loss = experts.loss_of(rank, number, t.dtype);
      if (step == 2 && pass == 1) loss = loss + experts.loss_of(1 - rank, number, t.dtype);
      loss.div(static_cast<double>(t.ranks.size())).backward();
    }
  }
}

TEST_P(TorchGrad, RanksThatUseOtherParametersInSeveralPasses) {
  Settings settings{.build = made<ExpertsImpl>};
  settings.options.layout.chunk_numel = 24 * 24 + 64;  // a weight
  for (const uint32_t accumulate : {1u, 3u}) {
    settings.options.accumulate = accumulate;
    const Program program = steps(4, train_experts);
    if (collective()) {
      return expect_error(mode(), {"Every rank must run the same operators"}, settings, program);
    }
    like_torch(settings, program);
  }
}

}  // namespace
}  // namespace elixir::test
