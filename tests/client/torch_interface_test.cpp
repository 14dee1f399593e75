// What a program asks of the optimizer itself, with torch::optim::AdamW beside: equal weights, or
// an error that names the remedy. The rows of docs/training.md name these tests.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/autograd.h>
#include <torch/nn/modules.h>
#include <torch/optim/adamw.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>

#include <atomic>
#include <cmath>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/client/small_training.h"
#include "tests/client/torch_ways.h"

namespace elixir::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::nn::Module;

class TorchInterface : public InEveryMode {};
IN_EVERY_MODE(TorchInterface);

// ---- gradients ----

TEST_P(TorchInterface, TheGradientOfAParameter) {
  Settings settings;
  settings.options.keep_gradients = true;
  run_elixir(
      mode(), small_net,
      [](Module& net, Trainer& t) {
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
      },
      settings);
}

TEST_P(TorchInterface, AGradientThatWasNotKeptIsRefused) {
  expect_error(mode(), small_net,
               [](Module& net, Trainer& t) {
                 plain_step(net, t, 0);
                 t.elixir()->gradient(parameter(net, "0.weight"));
               },
               {"'0.weight'", "keep_gradients"});
}

TEST_P(TorchInterface, TheNormWithoutClipping) {
  Settings settings;
  settings.options.grad_norm = true;
  expect_like_torch(mode(), small_net, kThreeSteps, settings);
  run_elixir(
      mode(), small_net,
      [](Module& net, Trainer& t) {
        double squares = 0;
        for (const at::Tensor& grad :
             torch::autograd::grad({net_loss(net, 0, t)}, net.parameters())) {
          squares += grad.to(at::kDouble).square().sum().item<double>();
        }
        plain_step(net, t, 0);
        EXPECT_NEAR(t.elixir()->outcome().grad_norm, std::sqrt(squares), 1e-6 * std::sqrt(squares));
      },
      settings);
}

// ---- values ----

TEST_P(TorchInterface, AParameterIsGivenValues) {
  expect_like_torch(mode(), small_net, [](Module& net, Trainer& t) {
    t.set_parameter(parameter(net, "2.bias"), wave({4}, 5));
    plain_steps(0, 2, net, t);
    t.set_parameter(parameter(net, "0.weight"), wave({16, 8}, 7));
    t.set_parameter(parameter(net, "1.weight"), wave({16}, 9));
    plain_steps(2, 2, net, t);
    t.set_parameter(parameter(net, "0.weight"), wave({16, 8}, 11));
  });
}

TEST_P(TorchInterface, AFrozenParameterIsGivenValues) {
  const auto build = [] {
    const auto net = small_net();
    parameter(*net, "0.weight").requires_grad_(false);
    parameter(*net, "0.bias").requires_grad_(false);
    return net;
  };
  expect_like_torch(mode(), build, [](Module& net, Trainer& t) {
    plain_steps(0, 2, net, t);
    t.set_parameter(parameter(net, "0.weight"), wave({16, 8}, 7).to(t.dtype));
    plain_steps(2, 2, net, t);
  });
}

TEST_P(TorchInterface, ValuesOfAnotherShapeOrAtAWrongTimeAreRefused) {
  expect_error(mode(), small_net,
               [](Module& net, Trainer& t) {
                 t.set_parameter(parameter(net, "0.weight"), wave({8, 16}, 7));
               },
               {"'0.weight'", "[8, 16]", "[16, 8]"});
  expect_error(mode(), small_net,
               [](Module& net, Trainer& t) {
                 net_loss(net, 0, t).backward();
                 t.set_parameter(parameter(net, "0.weight"), wave({16, 8}, 7));
               },
               {"set_parameter() between backward() and step()"});
}

// A call of all ranks that one makes alone, while the other trains on.
TEST_P(TorchInterface, ACallOfOneRankAloneIsRefused) {
  if (mode().ranks == 1) GTEST_SKIP() << "one rank";
  for (const bool releases : {false, true}) {
    expect_error(mode(), small_net,
                 [releases](Module& net, Trainer& t) {
                   plain_step(net, t, 0);
                   if (t.ranks[0] == 0 && releases) {
                     t.release();
                   } else if (t.ranks[0] == 0) {
                     t.set_parameter(parameter(net, "0.weight"), wave({16, 8}, 7));
                   }
                   plain_step(net, t, 1);
                 },
                 {"rank 0", "rank 1", releases ? "release()" : "set_parameter()"});
  }
}

// With the collective exchange all ranks gather together; with elixird's each takes what it needs.
TEST_P(TorchInterface, RanksThatReadInAnotherOrder) {
  Settings settings;
  settings.options.layout.chunk_numel = 128;
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
    if (mode().exchange == shm::Exchange::kHost) {
      run_elixir(mode(), small_net, program, settings);
    } else {
      expect_error(mode(), small_net, program,
                   {"rank 0", "rank 1", "of chunk", "read parameters in the same order"}, settings);
    }
  }
}

// A parameter without a gradient lets the ranks compare what they say of each.
TEST_P(TorchInterface, AGroupOfOneRankAloneIsRefused) {
  if (mode().ranks == 1) GTEST_SKIP() << "one rank";
  const std::vector<std::string> texts =
      mode().exchange == shm::Exchange::kHost
          ? std::vector<std::string>{"group"}
          : std::vector<std::string>{"' is in group ", "parameter '", "the same on all ranks"};
  expect_error(
      mode(), small_net,
      [](Module& net, Trainer& t) {
        t.add_group({{parameter(net, t.ranks[0] == 0 ? "0.weight" : "2.weight")}, 2e-3});
        parameter(net, "2.bias").requires_grad_(false);
        plain_steps(0, 2, net, t);
        t.elixir()->synchronize();
      },
      texts);
}

// Operators on a list need all of its tensors at once.
TEST_P(TorchInterface, AnOperatorOnMoreThanTheCacheHolds) {
  Settings settings;
  settings.options.layout.chunk_numel = 128;
  settings.options.layout.rcache_blocks = 3;
  const auto build = [] {
    torch::nn::Sequential net;
    for (int i = 0; i < 6; ++i) net->push_back(torch::nn::Linear(8, 16 - i));
    return net.ptr();
  };
  expect_error(
      mode(), build, [](Module& net, Trainer&) { at::_foreach_norm(net.parameters()); },
      {"_foreach_norm", "--rcache-blocks"}, settings);
  run_elixir(
      mode(), build,
      [](Module& net, Trainer&) {
        double sum = 0;
        for (const at::Tensor& p : net.parameters()) sum += p.detach().norm().item<double>();
        EXPECT_GT(sum, 0);
      },
      settings);
}

// ---- what the optimizer is built on ----

TEST_P(TorchInterface, BuiltOnNamedTensors) {
  Settings settings;
  settings.of_tensors = true;
  expect_like_torch(mode(), small_net, kThreeSteps, settings);
}

bool is_norm(const std::string& name, const at::Tensor&) { return name.starts_with("1."); }

TEST_P(TorchInterface, LeftOutParametersAreTorchs) {
  Settings settings;
  settings.options.leave_out = is_norm;
  expect_like_torch(
      mode(), small_net,
      [](Module& net, Trainer& t) {
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
      },
      settings);
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
    Options options;
    options.dtype = mode().dtype;
    options.layout.exchange = mode().exchange;
    options.environment = environment;
    AdamW optimizer(net, {}, options);
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
  const auto build = [] {
    const auto net = small_net();
    for (at::Tensor& p : net->parameters()) p.requires_grad_(false);
    return net;
  };
  run_elixir(mode(), build, [&](Module& net, Trainer& t) {
    const at::NoGradGuard no_grad;
    const auto plain = net.clone();  // an ordinary module
    for (int64_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(at::equal(net_output(net, i, t), net_output(*plain, i, t)));
    }
  });
  expect_error(mode(), build, [](Module&, Trainer& t) { t.step(); }, {"nothing to train"});
}

TEST_P(TorchInterface, ReleaseGivesTheModelBack) {
  expect_like_torch(mode(), small_net, [](Module& net, Trainer& t) {
    plain_steps(0, 3, net, t);
    t.release();
    std::stringstream file;
    torch::serialize::OutputArchive archive;
    net.save(archive);
    archive.save_to(file);
    const auto read = small_net();
    torch::serialize::InputArchive back;
    back.load_from(file);
    read->load(back);
    for (const auto& item : net.named_parameters()) {
      EXPECT_TRUE(at::equal(parameter(*read, item.key()), item.value())) << item.key();
    }
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
  run_elixir(mode(), small_net, [](Module& net, Trainer& t) {
    plain_steps(0, 1, net, t);
    t.release();
    EXPECT_THROW(t.elixir()->step(), Error);
    const at::Tensor weight = parameter(net, "0.weight").clone();
    EXPECT_GT(weight.abs().sum().item<double>(), 0);
  });
}

TEST_P(TorchInterface, TorchsClassOfAReleasedOptimizerIsRefused) {
  run_elixir(mode(), small_net, [](Module& net, Trainer& t) {
    torch::optim::Optimizer& torchs = t.torch_optimizer();
    torch::optim::StepLR scheduler(torchs, /*step_size=*/1, /*gamma=*/0.5);
    plain_step(net, t, 0);
    scheduler.step();
    t.release();
    scheduler.step();
    EXPECT_GT(torchs.param_groups()[0].options().get_lr(), 0);
    torchs.zero_grad();
    const auto refused = HasSubstr("has released its model");
    EXPECT_THAT(message_of([&] { torchs.step(); }), refused);
    EXPECT_THAT(message_of([&] { t.elixir()->torch_optimizer(); }), refused);
    EXPECT_THAT(message_of([&] { (void)t.elixir()->lr(); }), refused);
  });
}

TEST_P(TorchInterface, AnOptimizerThatWasMovedFromIsRefused) {
  run_elixir(mode(), small_net, [](Module& net, Trainer& t) {
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
    Options options;
    options.dtype = mode().dtype;
    options.layout.exchange = mode().exchange;
    options.environment = environment;
    { const AdamW first(net, {}, options); }
    EXPECT_THAT(message_of([&] { const AdamW second(net, {}, options); }),
                AllOf(HasSubstr("'weight'"), HasSubstr("build the model anew")));
  });
}

}  // namespace
}  // namespace elixir::test
