// Groups of parameters with hyperparameters of their own, and torch's class of the optimizer, with
// torch::optim::AdamW beside: equal weights, or an error that names the remedy. The rows of
// docs/torch_ways.md name these tests.

#include <ATen/ATen.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <utility>
#include <vector>

#include "tests/client/small_training.h"
#include "tests/client/torch_ways.h"
#include "tests/support/matchers.h"

namespace elixir::test {
namespace {

using torch::nn::Module;

class TorchGroups : public InEveryMode {};
IN_EVERY_MODE(TorchGroups);

std::vector<ParamGroup> biases_and_the_last(Module& net) {
  ParamGroup biases{.lr = 5e-3, .weight_decay = 0.0, .betas = std::pair(0.8, 0.95)};
  ParamGroup last{.betas = std::pair(0.5, 0.9), .eps = 1e-3};
  for (const auto& item : net.named_parameters()) {
    if (item.key().ends_with("bias")) {
      biases.parameters.push_back(item.value());
    } else if (item.key().starts_with("2.")) {
      last.parameters.push_back(item.value());
    }
  }
  return {biases, last};
}

const Settings kGrouped{.groups = biases_and_the_last};

torch::optim::AdamWOptions& torchs_options(Trainer& t, size_t group) {
  return static_cast<torch::optim::AdamWOptions&>(
      t.torch_optimizer().param_groups()[group].options());
}

TEST_P(TorchGroups, HyperparametersOfAGroupChange) {
  like_torch(kGrouped, [](Module& net, Trainer& t) {
    plain_steps(0, 2, net, t);
    t.set_group(1, {.lr = 3e-3, .weight_decay = 0.2});
    t.set_group(2, {.betas = std::pair(0.7, 0.99), .eps = 1e-6});
    plain_steps(2, 2, net, t);
    if (t.elixir() == nullptr) return;
    const std::vector<ParamGroup> now = t.elixir()->param_groups();
    ASSERT_EQ(now.size(), 3u);
    EXPECT_EQ(now[1].lr, 3e-3);
    EXPECT_EQ(now[2].eps, 1e-6);
    EXPECT_EQ(now[2].betas, std::pair(0.7, 0.99));
    EXPECT_EQ(now[1].parameters.size(), 3u);
  });
}

TEST_P(TorchGroups, AGroupIsAdded) {
  like_torch([](Module& net, Trainer& t) {
    plain_steps(0, 2, net, t);
    t.add_group({{parameter(net, "0.weight"), parameter(net, "2.bias")}, 2e-3, 0.3});
    plain_steps(2, 3, net, t);
  });
}

TEST_P(TorchGroups, AGroupOfGroupedParametersIsRefused) {
  refused({"'0.weight'", "is in group 1"}, [](Module& net, Trainer& t) {
    t.add_group({{parameter(net, "0.weight")}, 2e-3});
    t.add_group({{parameter(net, "0.weight")}, 3e-3});
  });
}

TEST_P(TorchGroups, ASchedulerOfTorch) {
  like_torch(kGrouped, [](Module& net, Trainer& t) {
    torch::optim::StepLR scheduler(t.torch_optimizer(), /*step_size=*/2, /*gamma=*/0.5);
    for (int64_t i = 0; i < 5; ++i) {
      plain_step(net, t, i);
      scheduler.step();
    }
    if (t.elixir() != nullptr) {
      EXPECT_DOUBLE_EQ(t.elixir()->lr(1), 5e-3 * 0.25);
    }
  });
}

TEST_P(TorchGroups, StepsAndZeroGradThroughTorchsClass) {
  like_torch([](Module& net, Trainer& t) {
    for (int64_t i = 0; i < 2; ++i) {
      if (t.elixir() == nullptr) {
        t.zero_grad();
      } else {
        t.torch_optimizer().zero_grad();
      }
      net_loss(net, i, t).backward();
      if (t.elixir() == nullptr) {
        t.step();
      } else {
        t.torch_optimizer().step();
      }
    }
  });
}

TEST_P(TorchGroups, OptionsOfTorchsClassAreSet) {
  like_torch(kGrouped, [](Module& net, Trainer& t) {
    plain_steps(0, 2, net, t);
    for (auto& group : t.torch_optimizer().param_groups()) {
      static_cast<torch::optim::AdamWOptions&>(group.options()).lr(3e-3).weight_decay(0.2);
    }
    torchs_options(t, 2).betas(std::make_tuple(0.7, 0.99)).eps(1e-6);
    plain_steps(2, 2, net, t);
    torchs_options(t, 0).lr(2e-2);
    plain_steps(4, 1, net, t);
    torchs_options(t, 1).lr(4e-3);
    if (t.elixir() == nullptr) return;
    EXPECT_EQ(t.elixir()->lr(0), 2e-2);
    EXPECT_EQ(t.elixir()->lr(1), 4e-3);
    const std::vector<ParamGroup> now = t.elixir()->param_groups();
    EXPECT_EQ(now[1].weight_decay, 0.2);
    EXPECT_EQ(now[2].betas, std::pair(0.7, 0.99));
    EXPECT_EQ(now[2].eps, 1e-6);
  });
}

TEST_P(TorchGroups, TheOptionThatWasSetLastCounts) {
  like_torch(kGrouped, [](Module& net, Trainer& t) {
    torchs_options(t, 0).lr(7e-3).eps(1e-5);
    t.set_group(0, {.lr = 1e-2});  // what it had before
    EXPECT_EQ(torchs_options(t, 0).get_lr(), 1e-2);
    EXPECT_EQ(torchs_options(t, 0).eps(), 1e-5);
    plain_steps(0, 2, net, t);
    t.set_group(1, {.lr = 1e-3, .weight_decay = 0.3});
    torchs_options(t, 1).weight_decay(0.1);
    plain_steps(2, 2, net, t);
    EXPECT_EQ(torchs_options(t, 1).lr(), 1e-3);
    EXPECT_EQ(torchs_options(t, 1).weight_decay(), 0.1);
    torchs_options(t, 2).lr(1e-4);
    t.set_lr(4e-3);
    for (const size_t group : {0u, 1u, 2u}) {
      EXPECT_DOUBLE_EQ(torchs_options(t, group).get_lr(), group == 1 ? 2e-3 : 4e-3);
    }
    plain_steps(4, 2, net, t);
  });
}

TEST_P(TorchGroups, AGroupIsAddedBesideTorchsClass) {
  like_torch([](Module& net, Trainer& t) {
    torchs_options(t, 0).lr(5e-3).weight_decay(0.2);
    plain_steps(0, 2, net, t);
    torchs_options(t, 0).lr(8e-3);
    t.add_group({.parameters = {parameter(net, "2.bias"), parameter(net, "0.weight")},
                 .weight_decay = 0.3});
    ASSERT_EQ(t.torch_optimizer().param_groups().size(), 2u);
    EXPECT_EQ(t.torch_optimizer().param_groups()[0].params().size(), 4u);
    EXPECT_EQ(t.torch_optimizer().param_groups()[1].params().size(), 2u);
    EXPECT_EQ(torchs_options(t, 1).get_lr(), 8e-3);
    plain_steps(2, 2, net, t);
    torchs_options(t, 1).lr(1e-3);
    plain_steps(4, 2, net, t);
  });
}

// The numbers of both, of one parameter whose gradient in step i is wave(i).
TEST_P(TorchGroups, OptionsOfAdamAreTorchs) {
  const auto train = [](at::Tensor weight, const std::function<void()>& step,
                        torch::optim::Optimizer& torchs) {
    for (int64_t i = 0; i < 6; ++i) {
      if (i == 3) {
        auto& options = torchs.param_groups()[0].options();
        static_cast<torch::optim::AdamOptions&>(options).lr(2e-2).weight_decay(0.3).eps(1e-6);
      }
      torchs.zero_grad();
      (weight.to(at::kFloat) * wave({130}, i)).sum().backward();
      step();
    }
  };
  struct One : Module {
    at::Tensor weight = register_parameter("weight", at::ones({130}));
  };
  One theirs;
  torch::optim::Adam adam(theirs.parameters(), torch::optim::AdamOptions(1e-2).weight_decay(0.1));
  train(
      theirs.weight, [&] { adam.step(); }, adam);
  run_ranks(mode().ranks, [&](const LaunchEnvironment& environment) {
    One ours;
    Adam optimizer(ours, {.lr = 1e-2, .weight_decay = 0.1}, options(environment));
    train(
        ours.weight, [&] { optimizer.step(); }, optimizer.torch_optimizer());
    EXPECT_EQ(optimizer.lr(), 2e-2);
    const at::NoGradGuard no_grad;
    EXPECT_LE(distance(ours.weight, theirs.weight), closeness() * norm_of(theirs.weight));
  });
}

TEST_P(TorchGroups, OptionsThatElixirLacksOrOutOfRangeAreRefused) {
  refused({"amsgrad"}, [](Module& net, Trainer& t) {
    torchs_options(t, 0).amsgrad(true);
    plain_step(net, t, 0);
  });
  refused({"lr = -1", "out of range"}, [](Module& net, Trainer& t) {
    torchs_options(t, 0).lr(-1);
    plain_step(net, t, 0);
  });
  refused({"AdamWOptions"}, [](Module&, Trainer& t) {
    t.torch_optimizer().param_groups()[0].set_options(
        std::make_unique<torch::optim::SGDOptions>(1e-2));
    t.torch_optimizer().step();
  });
}

TEST_P(TorchGroups, OptionsOfTorchsClassWithImmediateUpdates) {
  const Settings settings{.options = {.update = UpdateMode::kImmediate}};
  like_torch(settings, [](Module& net, Trainer& t) {
    torch::optim::StepLR scheduler(t.torch_optimizer(), /*step_size=*/1, /*gamma=*/0.7);
    for (int64_t i = 0; i < 4; ++i) {
      plain_step(net, t, i);
      scheduler.step();
      torchs_options(t, 0).weight_decay(0.1 * static_cast<double>(i));
    }
  });
  refused({"between backward() and step()"}, settings, [](Module& net, Trainer& t) {
    t.torch_optimizer();
    net_loss(net, 0, t).backward();
    torchs_options(t, 0).lr(1e-4);
    t.step();
  });
}

TEST_P(TorchGroups, AGroupAddedToTorchsClassIsRefused) {
  refused({"Optimizer::add_param_group"}, [](Module& net, Trainer& t) {
    t.torch_optimizer().add_param_group(torch::optim::OptimizerParamGroup({}));
    plain_step(net, t, 0);
  });
}

TEST_P(TorchGroups, EditsOfTheParametersOfTorchsClassAreRefused) {
  const std::vector<std::function<void(torch::optim::Optimizer&)>> edits = {
      [](auto& torchs) { torchs.param_groups()[0].params().pop_back(); },
      [](auto& torchs) { torchs.param_groups()[0].params().push_back(at::ones({2})); },
      [](auto& torchs) {
        torchs.param_groups()[0].params()[0] = at::ones({16, 8});
      },
      [](auto& torchs) { torchs.add_parameters({at::ones({2})}); },
      [](auto& torchs) { torchs.param_groups().clear(); },
  };
  for (const auto& edit : edits) {
    elixir_alone([&](Module& net, Trainer& t) {
      plain_steps(0, 1, net, t);
      edit(t.torch_optimizer());
      net_loss(net, 1, t).backward();
      const auto refused =
          AllOf(HasSubstr("Optimizer::add_param_group"), HasSubstr("requires_grad_(false)"));
      EXPECT_THAT(message_of([&] { t.step(); }), refused);
      EXPECT_THAT(message_of([&] { t.torch_optimizer().step(); }), refused);
    });
  }
}

TEST_P(TorchGroups, TorchSaveOfTheOptimizerIsRefused) {
  elixir_alone([](Module& net, Trainer& t) {
    plain_steps(0, 1, net, t);
    torch::serialize::OutputArchive to;
    EXPECT_THROW(t.torch_optimizer().save(to), Error);
    torch::serialize::InputArchive from;
    EXPECT_THROW(t.torch_optimizer().load(from), Error);
    plain_steps(1, 1, net, t);
  });
}

}  // namespace
}  // namespace elixir::test
