// What a program asks of the optimizer itself, with torch::optim::AdamW beside: equal weights, or
// an error that names the remedy. The rows of docs/torch_ways.md name these tests.

#include <ATen/ATen.h>
#include <torch/autograd.h>
#include <torch/nn/modules.h>
#include <torch/optim/adamw.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>

#include <atomic>
#include <cmath>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/client/small_training.h"
#include "tests/client/torch_ways.h"
#include "tests/support/matchers.h"

namespace elixir::test {
namespace {

using torch::nn::Module;

class TorchInterface : public InEveryMode {};
IN_EVERY_MODE(TorchInterface);

// ---- gradients ----

TEST_P(TorchInterface, TheGradientOfAParameter) {
  elixir_alone({.options = {.keep_gradients = true}}, [](Module& net, Trainer& t) {
    const at::Tensor weight = parameter(net, "0.weight");
    plain_step(net, t, 0);
    t.zero_grad();
    EXPECT_FALSE(t.elixir()->gradient(weight).defined());
    const at::Tensor first = torch::autograd::grad({net_loss(net, 1, t)}, {weight})[0];
    const at::Tensor second = torch::autograd::grad({net_loss(net, 2, t)}, {weight})[0];
    const at::Tensor want = first.to(at::kFloat) + second.to(at::kFloat);
    net_loss(net, 1, t).backward();
    net_loss(net, 2, t).backward();
    EXPECT_TRUE(at::equal(t.elixir()->gradient(weight), want));
    t.step();
    EXPECT_TRUE(at::equal(t.elixir()->gradient(weight), want));
  });
}

TEST_P(TorchInterface, AGradientThatWasNotKeptIsRefused) {
  refused({"'0.weight'", "keep_gradients"}, [](Module& net, Trainer& t) {
    plain_step(net, t, 0);
    t.elixir()->gradient(parameter(net, "0.weight"));
  });
}

TEST_P(TorchInterface, TheNormWithoutClipping) {
  const Settings settings{.options = {.grad_norm = true}};
  like_torch(settings, kThreeSteps);
  elixir_alone(settings, [](Module& net, Trainer& t) {
    double squares = 0;
    for (const at::Tensor& grad : torch::autograd::grad({net_loss(net, 0, t)}, net.parameters())) {
      squares += grad.to(at::kDouble).square().sum().item<double>();
    }
    plain_step(net, t, 0);
    EXPECT_NEAR(t.elixir()->outcome().grad_norm, std::sqrt(squares), 1e-6 * std::sqrt(squares));
  });
}

// ---- values ----

TEST_P(TorchInterface, AParameterIsGivenValues) {
  like_torch([](Module& net, Trainer& t) {
    t.set_parameter(parameter(net, "2.bias"), wave({4}, 5));
    plain_steps(0, 2, net, t);
    t.set_parameter(parameter(net, "0.weight"), wave({16, 8}, 7));
    t.set_parameter(parameter(net, "1.weight"), wave({16}, 9));
    plain_steps(2, 2, net, t);
    t.set_parameter(parameter(net, "0.weight"), wave({16, 8}, 11));
  });
}

TEST_P(TorchInterface, AFrozenParameterIsGivenValues) {
  const Build build = net_with([](Module& net) {
    for (const char* name : {"0.weight", "0.bias"}) parameter(net, name).requires_grad_(false);
  });
  like_torch({.build = build}, [](Module& net, Trainer& t) {
    plain_steps(0, 2, net, t);
    t.set_parameter(parameter(net, "0.weight"), wave({16, 8}, 7).to(t.dtype));
    plain_steps(2, 2, net, t);
  });
}

TEST_P(TorchInterface, ValuesOfAnotherShapeOrAtAWrongTimeAreRefused) {
  refused({"'0.weight'", "[8, 16]", "[16, 8]"}, [](Module& net, Trainer& t) {
    t.set_parameter(parameter(net, "0.weight"), wave({8, 16}, 7));
  });
  refused({"set_parameter() between backward() and step()"}, [](Module& net, Trainer& t) {
    net_loss(net, 0, t).backward();
    t.set_parameter(parameter(net, "0.weight"), wave({16, 8}, 7));
  });
}

// A call of all ranks that one makes alone, while the other trains on.
TEST_P(TorchInterface, ACallOfOneRankAloneIsRefused) {
  if (mode().ranks == 1) GTEST_SKIP() << "one rank";
  for (const bool releases : {false, true}) {
    if (releases && collective() && !every_case()) continue;
    expect_error(mode(), {"rank 0", "rank 1", releases ? "release()" : "set_parameter()"}, {},
                 [releases](Module& net, Trainer& t) {
                   plain_step(net, t, 0);
                   if (t.ranks[0] == 0 && releases) {
                     t.release();
                   } else if (t.ranks[0] == 0) {
                     t.set_parameter(parameter(net, "0.weight"), wave({16, 8}, 7));
                   }
                   plain_step(net, t, 1);
                 });
  }
}

// With the collective exchange all ranks gather together; with elixird's each takes what it needs.
TEST_P(TorchInterface, RanksThatReadInAnotherOrder) {
  const Settings settings{.options = {.layout = {.chunk_numel = 128}}};
  const auto in_order = [](Module& net, Trainer& t, const auto& read) {
    plain_step(net, t, 0);
    std::vector<at::Tensor> order = {parameter(net, "0.weight"), parameter(net, "2.weight")};
    if (t.ranks[0] != 0) std::swap(order[0], order[1]);
    for (const at::Tensor& each : order) read(each);
  };
  const std::vector<Program> programs = {
      [&](Module& net, Trainer& t) {
        in_order(net, t, [](const at::Tensor& each) {
          const at::NoGradGuard no_grad;
          each.clone();
        });
      },
      [&](Module& net, Trainer& t) {
        in_order(net, t, [](const at::Tensor& each) { const Gathered held = gathered({each}); });
      }};
  for (const Program& program : programs) {
    if (!collective()) {
      elixir_alone(settings, program);
      continue;
    }
    expect_error(mode(), {"rank 0", "rank 1", "of chunk", "read parameters in the same order"},
                 settings, program);
    if (!every_case()) return;
  }
}

// A parameter without a gradient lets the ranks compare what they say of each.
TEST_P(TorchInterface, AGroupOfOneRankAloneIsRefused) {
  if (mode().ranks == 1) GTEST_SKIP() << "one rank";
  const std::vector<std::string> texts =
      mode().exchange == shm::Exchange::kHost
          ? std::vector<std::string>{"group"}
          : std::vector<std::string>{"' is in group ", "parameter '", "the same on all ranks"};
  expect_error(mode(), texts, {}, [](Module& net, Trainer& t) {
    t.add_group({{parameter(net, t.ranks[0] == 0 ? "0.weight" : "2.weight")}, 2e-3});
    parameter(net, "2.bias").requires_grad_(false);
    plain_steps(0, 2, net, t);
    t.elixir()->synchronize();
  });
}

// Operators on a list need all of its tensors at once.
TEST_P(TorchInterface, AnOperatorOnMoreThanTheCacheHolds) {
  Settings settings{.options = {.layout = {.chunk_numel = 128, .rcache_blocks = 3}}};
  settings.build = [] {
    torch::nn::Sequential net;
    for (int i = 0; i < 6; ++i) net->push_back(torch::nn::Linear(8, 16 - i));
    return net.ptr();
  };
  refused({"_foreach_norm", "--rcache-blocks"}, settings,
          [](Module& net, Trainer&) { at::_foreach_norm(net.parameters()); });
  elixir_alone(settings, [](Module& net, Trainer&) {
    double sum = 0;
    for (const at::Tensor& p : net.parameters()) sum += p.detach().norm().item<double>();
    EXPECT_GT(sum, 0);
  });
}

// ---- what the optimizer is built on ----

TEST_P(TorchInterface, BuiltOnNamedTensors) { like_torch({.of_tensors = true}, kThreeSteps); }

bool is_norm(const std::string& name, const at::Tensor&) { return name.starts_with("1."); }

TEST_P(TorchInterface, LeftOutParametersAreTorchs) {
  like_torch({.options = {.leave_out = is_norm}}, [](Module& net, Trainer& t) {
    if (t.elixir() != nullptr) {
      EXPECT_EQ(parameter(net, "1.weight").scalar_type(), at::kFloat);  // as it was built
    }
    const std::vector<at::Tensor> norm = {parameter(net, "1.weight"), parameter(net, "1.bias")};
    torch::optim::AdamW others(norm, torch::optim::AdamWOptions(3e-3));
    for (int64_t i = 0; i < 3; ++i) {
      others.zero_grad();
      plain_step(net, t, i);
      others.step();
    }
  });
}

struct WithBuffers : Module {
  WithBuffers() {
    static std::atomic<int> built{0};  // another value on each rank
    const int number = built++;
    weight = register_parameter("weight", at::ones({130}));
    scale = register_buffer("scale", at::full({3}, 1.5f + static_cast<float>(number)));
    bytes = register_buffer("bytes", at::arange(5) * 1000003 + number);
    mask = register_buffer("mask", at::full({2, 2}, number % 2 == 0));
  }
  at::Tensor weight, scale, bytes, mask;
};

TEST_P(TorchInterface, BuffersAreRankZeros) {
  std::vector<std::vector<at::Tensor>> seen(mode().ranks);
  std::vector<at::Tensor> first;
  std::mutex mutex;
  run_ranks(mode().ranks, [&](const LaunchEnvironment& environment) {
    WithBuffers net;
    if (environment.rank == 0) {
      for (const at::Tensor& buffer : net.buffers()) first.push_back(buffer.clone());
    }
    AdamW optimizer(net, {}, options(environment));
    EXPECT_TRUE(at::equal(at::ones({130}), net.weight.to(at::kFloat))) << "the carrier's weights";
    const std::lock_guard lock(mutex);
    for (const at::Tensor& buffer : net.buffers()) seen[environment.rank].push_back(buffer.clone());
  });
  for (const auto& of_rank : seen) {
    ASSERT_EQ(of_rank.size(), 3u);
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(of_rank[i], first[i])) << i;
  }
}

TEST_P(TorchInterface, InferenceWithNothingToTrain) {
  const Build build = net_with([](Module& net) {
    for (at::Tensor& p : net.parameters()) p.requires_grad_(false);
  });
  elixir_alone({.build = build}, [&](Module& net, Trainer& t) {
    const at::NoGradGuard no_grad;
    const auto plain = net.clone();  // an ordinary module
    for (int64_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(at::equal(net_output(net, i, t), net_output(*plain, i, t)));
    }
  });
  refused({"nothing to train"}, {.build = build}, [](Module&, Trainer& t) { t.step(); });
}

TEST_P(TorchInterface, ReleaseGivesTheModelBack) {
  Settings settings;
  settings.options.layout.chunk_numel = 1024;  // all parameters in one
  like_torch(settings, [](Module& net, Trainer& t) {
    plain_steps(0, 3, net, t);
    t.release();
    const auto read = small_net();
    load(*read, saved(net));
    for (const auto& item : net.named_parameters()) {
      EXPECT_TRUE(at::equal(parameter(*read, item.key()), item.value())) << item.key();
    }
    load(net, saved(*small_net()));  // other values
    load(net, saved(*read));
    torch::optim::SGD others(net.parameters(), torch::optim::SGDOptions(1e-2));
    for (int64_t i = 3; i < 5; ++i) {
      others.zero_grad();
      net_loss(net, i, t).backward();
      others.step();
    }
    EXPECT_EQ(parameter(net, "0.weight").scalar_type(), at::kFloat);
  });
}

TEST_P(TorchInterface, AReleasedOptimizerIsRefused) {
  elixir_alone([](Module& net, Trainer& t) {
    torch::optim::Optimizer& torchs = t.torch_optimizer();
    torch::optim::StepLR scheduler(torchs, /*step_size=*/1, /*gamma=*/0.5);
    plain_step(net, t, 0);
    scheduler.step();
    t.release();
    scheduler.step();
    EXPECT_GT(torchs.param_groups()[0].options().get_lr(), 0);
    torchs.zero_grad();
    const auto refused = HasSubstr("has released its model");
    EXPECT_THAT(message_of([&] { t.elixir()->step(); }), refused);
    EXPECT_THAT(message_of([&] { torchs.step(); }), refused);
    EXPECT_THAT(message_of([&] { t.elixir()->torch_optimizer(); }), refused);
    EXPECT_THAT(message_of([&] { (void)t.elixir()->lr(); }), refused);
    EXPECT_GT(parameter(net, "0.weight").abs().sum().item<double>(), 0);
  });
}

TEST_P(TorchInterface, AnOptimizerThatWasMovedFromIsRefused) {
  elixir_alone([](Module& net, Trainer& t) {
    torch::optim::Optimizer& torchs = t.torch_optimizer();
    Optimizer moved(std::move(*t.elixir()));
    EXPECT_THAT(message_of([&] { t.step(); }), HasSubstr("was moved from"));
    torchs.param_groups()[0].options().set_lr(3e-3);
    net_loss(net, 0, t).backward();
    torchs.step();
    EXPECT_EQ(moved.outcome().step, 1u);
    EXPECT_EQ(moved.lr(), 3e-3);
  });
}

TEST_P(TorchInterface, AModelWhoseOptimizerIsGoneIsRefused) {
  run_ranks(mode().ranks, [&](const LaunchEnvironment& environment) {
    WithBuffers net;
    { const AdamW first(net, {}, options(environment)); }
    EXPECT_THAT(message_of([&] { const AdamW second(net, {}, options(environment)); }),
                AllOf(HasSubstr("'weight'"), HasSubstr("build the model again")));
  });
}

}  // namespace
}  // namespace elixir::test
