// Copies of a model, evaluation, threads and several optimizers of a process, with
// torch::optim::AdamW beside: equal weights, or an error that names the remedy. The rows of
// docs/training.md name these tests.

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <torch/nn/modules.h>
#include <torch/optim/adamw.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/client/small_training.h"
#include "tests/client/torch_ways.h"

namespace elixir::test {
namespace {

using torch::nn::Module;

class TorchEvaluation : public InEveryMode {};
IN_EVERY_MODE(TorchEvaluation);

// ---- copies, evaluation ----

TEST_P(TorchEvaluation, AnAverageOfTheWeights) {
  std::vector<at::Tensor> averages;
  std::mutex mutex;
  expect_like_torch(mode(), small_net, [&](Module& net, Trainer& t) {
    std::vector<at::Tensor> ema;
    for (const auto& p : net.parameters()) ema.push_back(p.detach().clone());
    for (int64_t i = 0; i < 3; ++i) {
      plain_step(net, t, i);
      const at::NoGradGuard no_grad;
      size_t at = 0;
      for (const auto& p : net.parameters()) ema[at++].lerp_(p, 0.25);
    }
    const std::lock_guard lock(mutex);
    averages.push_back(ema[0].to(at::kDouble));
  });
  for (const at::Tensor& average : averages) {
    EXPECT_TRUE(at::allclose(average, averages.back(), fp32() ? 1e-5 : 1e-2, fp32() ? 1e-6 : 1e-2));
  }
}

struct Copied : torch::nn::Cloneable<Copied> {
  Copied() { reset(); }
  void reset() override { in = register_module("in", torch::nn::Linear(8, 4)); }
  at::Tensor loss(int64_t number, at::ScalarType dtype) {
    return in(wave({6, 8}, number, dtype)).to(at::kFloat).square().mean();
  }
  torch::nn::Linear in{nullptr};
};

TEST_P(TorchEvaluation, ACloneIsAnOrdinaryModule) {
  expect_like_torch(
      mode(), [] { return std::make_shared<Copied>(); },
      [](Module& net, Trainer& t) {
        for (int64_t i = 0; i < 2; ++i) {
          t.zero_grad();
          net.as<Copied>()->loss(i, t.dtype).backward();
          t.step();
        }
        const auto copy = std::dynamic_pointer_cast<Copied>(net.clone());
        EXPECT_TRUE(at::equal(copy->in->weight, net.as<Copied>()->in->weight));
        const at::NoGradGuard no_grad;
        copy->in->weight.mul_(2);
        EXPECT_NE(copy->in->weight.data_ptr(), nullptr);
      });
}

TEST_P(TorchEvaluation, EvaluationWithoutGradientsBetweenSteps) {
  expect_like_torch(mode(), small_net, [](Module& net, Trainer& t) {
    for (int64_t i = 0; i < 3; ++i) {
      plain_step(net, t, i);
      {
        const at::NoGradGuard no_grad;
        EXPECT_FALSE(net_output(net, i, t).requires_grad());
      }
      const c10::InferenceMode inference;
      EXPECT_TRUE(net_output(net, i, t).is_inference());
    }
  });
}

TEST_P(TorchEvaluation, EvaluationBetweenBackwardAndStep) {
  expect_like_torch(mode(), small_net, [](Module& net, Trainer& t) {
    for (int64_t i = 0; i < 3; ++i) {
      t.zero_grad();
      net_loss(net, i, t).backward();
      {
        const at::NoGradGuard no_grad;
        net_output(net, i + 30, t);
      }
      t.step();
    }
  });
}

TEST_P(TorchEvaluation, AnOptimizerBuiltInInferenceMode) {
  if (mode().ranks > 1) GTEST_SKIP() << "as alone";
  run_ranks(1, [&](const LaunchEnvironment& environment) {
    const auto net = small_net();
    std::unique_ptr<AdamW> optimizer;
    {
      const c10::InferenceMode inference;
      Options options;
      options.environment = environment;
      optimizer = std::make_unique<AdamW>(*net, AdamWOptions{}, options);
    }
    const at::Tensor before = parameter(*net, "0.weight").detach().clone();
    net->as<torch::nn::SequentialImpl>()->forward(wave({6, 8}, 0)).square().mean().backward();
    optimizer->step();
    EXPECT_FALSE(at::equal(before, parameter(*net, "0.weight").detach().clone()));
  });
}

// ---- threads, optimizers, processes ----

TEST_P(TorchEvaluation, EvaluationInASecondThreadDuringSteps) {
  if (mode().exchange == shm::Exchange::kCollective) {
    GTEST_SKIP() << "ranks must gather in one order";
  }
  Settings settings;
  settings.options.layout.rcache_blocks = 4;
  expect_like_torch(
      mode(), small_net,
      [](Module& net, Trainer& t) {
        if (!t.elixir()) return plain_steps(0, 20, net, t);
        std::atomic<bool> done{false};
        std::atomic<int> passes{0};
        std::thread evaluation([&] {
          at::set_num_threads(1);
          while (!done || passes < 3) {
            const at::NoGradGuard no_grad;
            const at::Tensor y = net_output(net, 3, t);
            ASSERT_TRUE(y.isfinite().all().item<bool>());
            ++passes;
          }
        });
        plain_steps(0, 20, net, t);
        done = true;
        evaluation.join();
      },
      settings);
}

TEST_P(TorchEvaluation, BuiltInOneThreadTrainedInAnother) {
  expect_like_torch(mode(), small_net, [](Module& net, Trainer& t) {
    std::thread([&] {
      at::set_num_threads(1);
      plain_steps(0, 3, net, t);
    }).join();
  });
}

// A generator and a critic, each with an optimizer of its own.
struct Pair : Module {
  Pair() {
    first = register_module("first", torch::nn::Linear(8, 8));
    second = register_module("second", torch::nn::Linear(8, 4));
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
};

TEST_P(TorchEvaluation, TwoOptimizersOfOneProcess) {
  std::vector<at::Tensor> ends;
  std::mutex mutex;
  const auto run = [&](Pair& pair, const auto& step_first, const auto& step_second,
                       at::ScalarType dtype) {
    for (int64_t i = 0; i < 3; ++i) {
      pair.second(pair.first(wave({6, 8}, i, dtype))).to(at::kFloat).square().mean().backward();
      step_first();
      pair.second(pair.first(wave({6, 8}, i, dtype)).detach()).to(at::kFloat).mean().backward();
      step_second();
    }
    const at::Tensor one = pair.first->weight.detach().clone().to(at::kDouble);
    const at::Tensor two = pair.second->weight.detach().clone().to(at::kDouble);
    const std::lock_guard lock(mutex);
    ends.push_back(one);
    ends.push_back(two);
  };
  run_ranks(mode().ranks, [&](const LaunchEnvironment& environment) {
    std::shared_ptr<Pair> pair;
    {
      static std::mutex building;
      const std::lock_guard lock(building);
      at::manual_seed(5);
      pair = std::make_shared<Pair>();
    }
    Options options;
    options.dtype = mode().dtype;
    options.layout.exchange = mode().exchange;
    options.environment = environment;
    AdamW first(*pair->first, {.lr = 1e-2}, options);
    options.environment->job += "#2";
    AdamW second(*pair->second, {.lr = 1e-2}, options);
    run(
        *pair, [&] { first.step(); }, [&] { second.step(); }, fp32() ? at::kFloat : at::kBFloat16);
  });
  if (!fp32()) return;
  at::manual_seed(5);
  Pair pair;
  torch::optim::AdamW first(pair.first->parameters(), torch::optim::AdamWOptions(1e-2));
  torch::optim::AdamW second(pair.second->parameters(), torch::optim::AdamWOptions(1e-2));
  run(
      pair,
      [&] {
        first.step();
        first.zero_grad();
      },
      [&] {
        second.step();
        second.zero_grad();
      },
      at::kFloat);
  for (size_t i = 0; i < ends.size(); ++i) {
    EXPECT_TRUE(at::allclose(ends[i], ends[ends.size() - 2 + i % 2], 1e-5, 1e-7)) << i;
  }
}

// Its operators end as usual, or by an error that says why.
TEST_P(TorchEvaluation, AnOptimizerEndsWhileAnotherThreadEvaluates) {
  if (mode().exchange == shm::Exchange::kCollective) GTEST_SKIP() << "ranks must gather alike";
  run_ranks(mode().ranks, [&](const LaunchEnvironment& environment) {
    for (int i = 0; i < 5; ++i) {
      const auto net = small_net();
      Options options;
      options.environment = environment;
      options.environment->job += fmt::format("#{}", i);
      auto optimizer = std::make_unique<AdamW>(*net, AdamWOptions{}, options);
      std::atomic<int> passes{0};
      std::string said;
      std::thread evaluation([&] {
        const at::NoGradGuard no_grad;
        try {
          for (;; ++passes) net->as<torch::nn::SequentialImpl>()->forward(wave({6, 8}, 0));
        } catch (const Error& failure) {
          said = failure.what();
        }
      });
      while (passes.load() < 20) std::this_thread::yield();
      optimizer.reset();
      evaluation.join();
      EXPECT_NE(said.find("is gone"), std::string::npos) << said;
    }
  });
}

TEST_P(TorchEvaluation, OptimizersOneAfterAnother) {
  const auto build = [] { return small_net(); };
  expect_like_torch(mode(), build, [](Module& net, Trainer& t) {
    plain_steps(0, 2, net, t);
    t.again();
    plain_steps(2, 2, net, t);
    t.again();
    plain_steps(4, 2, net, t);
  });
}

}  // namespace
}  // namespace elixir::test
