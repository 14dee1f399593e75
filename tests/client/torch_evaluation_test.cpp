// Copies of a model, evaluation, threads and several optimizers of a process, with
// torch::optim::AdamW beside: equal weights, or an error that names the remedy. The rows of
// docs/torch_ways.md name these tests.

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <torch/nn/modules.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/client/small_training.h"
#include "tests/client/torch_ways.h"
#include "tests/support/matchers.h"

namespace elixir::test {
namespace {

using torch::nn::Module;

class TorchEvaluation : public InEveryMode {};
IN_EVERY_MODE(TorchEvaluation);
IN_BF16_ON_TWO_RANKS(TorchEvaluation);

// ---- copies, evaluation ----

// Both as torch::optim::swa_utils of Python has them: with a fixed decay, and the mean of all.
TEST_P(TorchEvaluation, AnAverageOfTheWeights) {
  using Averages = std::vector<at::Tensor>;
  std::vector<Averages> of_runs;
  std::mutex mutex;
  like_torch([&](Module& net, Trainer& t) {
    Averages ema, swa;
    for (const auto& p : net.parameters()) {
      ema.push_back(p.detach().clone().to(at::kFloat));
      swa.push_back(at::zeros(p.sizes()));
    }
    for (int64_t i = 0; i < 3; ++i) {
      plain_step(net, t, i);
      const at::NoGradGuard no_grad;
      size_t at = 0;
      for (const auto& p : net.parameters()) {
        ema[at].lerp_(p.to(at::kFloat), 0.25);
        swa[at].add_((p - swa[at]) / (i + 1));
        ++at;
      }
    }
    ema.insert(ema.end(), swa.begin(), swa.end());
    const std::lock_guard lock(mutex);
    of_runs.push_back(ema);
  });
  const Averages& torchs = of_runs.back();
  for (const Averages& averages : of_runs) {
    for (size_t i = 0; i < averages.size(); ++i) {
      EXPECT_LE(distance(averages[i], torchs[i]), closeness() * norm_of(torchs[i])) << i;
    }
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
  like_torch({.build = made<Copied>}, [](Module& net, Trainer& t) {
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

// The file has the weights of before the step, and the step is made with all gradients.
TEST_P(TorchEvaluation, TorchSaveAndLoadBetweenBackwardAndStep) {
  like_torch({.options = {.layout = {.rcache_blocks = 64}}},
             steps(3, [](Module& net, Trainer& t, int64_t i) {
               net_loss(net, i, t).backward();
               const auto within_gathered = [&] {
                 const Gathered all = elixir::gathered(net.parameters());
                 return saved(net);
               };
               const std::string bytes = t.elixir() ? within_gathered() : saved(net);
               const auto read = small_net();
               read->to(t.dtype);
               load(*read, bytes);
               for (const auto& item : net.named_parameters()) {
                 EXPECT_TRUE(at::equal(item.value(), parameter(*read, item.key()))) << item.key();
               }
               if (!t.elixir()) return;
               EXPECT_THAT(message_of([&] { load(net, bytes); }),
                           AllOf(HasSubstr("in place"), HasSubstr("set_parameter")));
             }));
}

TEST_P(TorchEvaluation, EvaluationWithoutGradientsBetweenSteps) {
  like_torch([](Module& net, Trainer& t) {
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
  like_torch(steps(3, [](Module& net, Trainer& t, int64_t i) {
    net_loss(net, i, t).backward();
    {
      const at::NoGradGuard no_grad;
      net_output(net, i + 30, t);
    }
  }));
}

TEST_P(TorchEvaluation, AnOptimizerBuiltInInferenceMode) {
  Settings settings;
  settings.in_inference_mode = true;
  like_torch(settings, kThreeSteps);
}

// ---- threads, optimizers, processes ----

TEST_P(TorchEvaluation, EvaluationInASecondThreadDuringSteps) {
  if (collective()) {
    GTEST_SKIP() << "ranks must gather in one order";
  }
  Settings settings;
  settings.options.layout.rcache_blocks = 4;
  like_torch(settings, [](Module& net, Trainer& t) {
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
  });
}

TEST_P(TorchEvaluation, BuiltInOneThreadTrainedInAnother) {
  like_torch([](Module& net, Trainer& t) {
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
  Settings settings{.build = made<Pair>};
  settings.options.leave_out = [](const std::string& name, const at::Tensor&) {
    return name.starts_with("second.");
  };
  like_torch(settings, [](Module& net, Trainer& first) {
    auto& pair = *net.as<Pair>();
    Trainer& second = first.another(*pair.second);
    for (int64_t i = 0; i < 3; ++i) {
      const at::Tensor x = wave({6, 8}, i, first.dtype);
      pair.second(pair.first(x)).to(at::kFloat).square().mean().backward();
      first.step();
      first.zero_grad();
      const at::Tensor y = pair.second(pair.first(x).detach()).to(at::kFloat);
      (y - wave({6, 4}, i + 100)).square().mean().backward();
      second.step();
      second.zero_grad();
    }
  });
}

// Its operators end as usual, or by an error that says why.
TEST_P(TorchEvaluation, AnOptimizerEndsWhileAnotherThreadEvaluates) {
  if (collective()) GTEST_SKIP() << "ranks must gather alike";
  run_ranks(mode().ranks, [&](const LaunchEnvironment& environment) {
    for (int i = 0; i < 5; ++i) {
      const auto net = small_net();
      LaunchEnvironment mine = environment;
      mine.job += fmt::format("#{}", i);
      auto optimizer = std::make_unique<AdamW>(*net, AdamWOptions{}, options(mine));
      std::atomic<int> passes{0};
      std::string said;
      std::thread evaluation([&] {
        const at::NoGradGuard no_grad;
        const at::Tensor x = wave({6, 8}, 0, fp32() ? at::kFloat : at::kBFloat16);
        try {
          for (;; ++passes) net->as<torch::nn::SequentialImpl>()->forward(x);
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
  like_torch([](Module& net, Trainer& t) {
    plain_steps(0, 2, net, t);
    t.again();
    plain_steps(2, 2, net, t);
    t.again();
    plain_steps(4, 2, net, t);
  });
}

}  // namespace
}  // namespace elixir::test
