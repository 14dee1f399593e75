// Regions of elixir::checkpoint as torch's users write them, with the same program without regions
// and torch::optim::AdamW beside: equal weights, or an error that names the remedy. The rows of
// docs/training.md name these tests.

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/autograd.h>
#include <torch/nn/modules.h>

#include <mutex>
#include <set>

#include "tests/client/torch_ways.h"

namespace elixir::test {
namespace {

using torch::nn::Module;

class TorchCheckpoint : public InEveryMode {};
IN_EVERY_MODE(TorchCheckpoint);
IN_BF16_ON_TWO_RANKS(TorchCheckpoint);

// A region in Elixir's run, a plain call in torch's.
std::vector<at::Tensor> region(Trainer& t, const TensorsFunction& function,
                               const std::vector<at::Tensor>& inputs) {
  const bool checkpointed = t.elixir() != nullptr;
  return checkpointed ? elixir::checkpoint(function, inputs) : function(inputs);
}

struct Region : Module {
  Region() {
    in = register_module("in", torch::nn::Linear(8, 16));
    out = register_module("out", torch::nn::Linear(16, 4));
  }
  at::Tensor run(const at::Tensor& x) { return out(torch::gelu(in(x))); }
  at::Tensor loss(int64_t number, at::ScalarType dtype, bool checkpointed) {
    const at::Tensor x = wave({6, 8}, number, dtype).requires_grad_();
    const auto body = [this](const at::Tensor& input) { return run(input); };
    return (checkpointed ? elixir::checkpoint(body, x) : run(x)).to(at::kFloat).square().mean();
  }
  torch::nn::Linear in{nullptr}, out{nullptr};
};

std::shared_ptr<Module> region_net() { return std::make_shared<Region>(); }

at::Tensor region_loss(Module& net, int64_t number, Trainer& t) {
  return net.as<Region>()->loss(number, t.dtype, t.elixir() != nullptr);
}

void region_steps(Module& net, Trainer& t) {
  for (int64_t i = 0; i < 3; ++i) {
    t.zero_grad();
    region_loss(net, i, t).backward();
    t.step();
  }
}

TEST_P(TorchCheckpoint, CheckpointedRegions) {
  expect_like_torch(mode(), region_net, region_steps);
}

struct Dropped : Module {
  Dropped() {
    in = register_module("in", torch::nn::Linear(8, 16));
    drop = register_module("drop", torch::nn::Dropout(0.5));
    out = register_module("out", torch::nn::Linear(16, 4));
  }
  at::Tensor run(const at::Tensor& x) { return out(drop(torch::gelu(in(x)))); }
  torch::nn::Linear in{nullptr}, out{nullptr};
  torch::nn::Dropout drop{nullptr};
};

// Elixir's regions run anew in backward, with the numbers of their forward.
void dropout_steps(Module& module, Trainer& t, bool in_regions, bool autocast) {
  auto& net = *module.as<Dropped>();
  at::manual_seed(11);
  for (int64_t i = 0; i < 4; ++i) {
    t.zero_grad();
    at::autocast::set_autocast_enabled(at::kCPU, autocast);
    at::Tensor y = wave({6, 8}, i, t.dtype);
    const auto body = [&](const at::Tensor& x) { return net.run(x); };
    y = in_regions && t.elixir() ? elixir::checkpoint(body, y) : body(y);
    // More of the generator's numbers before backward.
    y = torch::dropout(y, 0.25, /*train=*/true);
    const at::Tensor loss = (y.to(at::kFloat) - wave({6, 4}, i + 100)).square().mean();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    loss.backward();
    t.step();
  }
}

TEST_P(TorchCheckpoint, DropoutOfAFixedSeed) {
  if (mode().ranks > 1) GTEST_SKIP() << "ranks are threads, and a process has one generator";
  expect_like_torch(
      mode(), [] { return std::make_shared<Dropped>(); },
      [](Module& net, Trainer& t) { dropout_steps(net, t, false, false); });
}

TEST_P(TorchCheckpoint, CheckpointedRegionsWithDropout) {
  if (mode().ranks > 1) GTEST_SKIP() << "ranks are threads, and a process has one generator";
  expect_like_torch(
      mode(), [] { return std::make_shared<Dropped>(); },
      [](Module& net, Trainer& t) { dropout_steps(net, t, true, false); });
}

TEST_P(TorchCheckpoint, CheckpointedRegionsWithDropoutUnderAutocast) {
  if (mode().ranks > 1) GTEST_SKIP() << "ranks are threads, and a process has one generator";
  if (!fp32()) GTEST_SKIP() << "nothing to cast";
  Settings settings;
  settings.tolerance = 1e-4;
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  expect_like_torch(
      mode(), [] { return std::make_shared<Dropped>(); },
      [](Module& net, Trainer& t) { dropout_steps(net, t, true, true); }, settings);
}

TEST_P(TorchCheckpoint, CheckpointedRegionsUnderAutocast) {
  if (!fp32()) GTEST_SKIP() << "nothing to cast";
  Settings settings;
  settings.tolerance = 1e-4;
  expect_like_torch(
      mode(), region_net,
      [](Module& net, Trainer& t) {
        at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
        for (int64_t i = 0; i < 3; ++i) {
          t.zero_grad();
          at::autocast::set_autocast_enabled(at::kCPU, true);
          const at::Tensor loss = region_loss(net, i, t);
          at::autocast::set_autocast_enabled(at::kCPU, false);
          at::autocast::clear_cache();
          loss.backward();
          t.step();
        }
      },
      settings);
}

// ---- what a region returns ----

// Words in, their likelihoods out, by one weight.
struct TiedHead : Module {
  TiedHead() {
    words = register_module("words", torch::nn::Embedding(10, 8));
    in = register_module("in", torch::nn::Linear(8, 8));
  }
  at::Tensor hidden(const at::Tensor& x) { return torch::gelu(in(words(x))); }
  torch::nn::Embedding words{nullptr};
  torch::nn::Linear in{nullptr};
};

// `head` has the hidden state and the weight.
using Head = std::function<std::vector<at::Tensor>(TiedHead&, const at::Tensor& x, Trainer&)>;

Program tied_steps(const Head& head) {
  return [head](Module& net, Trainer& t) {
    for (int64_t i = 0; i < 3; ++i) {
      t.zero_grad();
      const std::vector<at::Tensor> out =
          head(*net.as<TiedHead>(), (at::arange(6) + i).remainder(10), t);
      out[0].mm(out[1].t()).to(at::kFloat).square().mean().backward();
      t.step();
    }
    EXPECT_TRUE(net.as<TiedHead>()->words->weight.is_leaf());
  };
}

TEST_P(TorchCheckpoint, ARegionThatReturnsAParameter) {
  const Head head = [](TiedHead& net, const at::Tensor& x, Trainer& t) {
    const at::Tensor hidden = net.hidden(x);
    const TensorsFunction weight = [&net](const std::vector<at::Tensor>&) {
      return std::vector<at::Tensor>{net.words->weight};
    };
    return std::vector<at::Tensor>{hidden, region(t, weight, {hidden})[0]};
  };
  expect_like_torch(
      mode(), [] { return std::make_shared<TiedHead>(); }, tied_steps(head));
}

TEST_P(TorchCheckpoint, ARegionThatReturnsAParameterForATiedHead) {
  const Head head = [](TiedHead& net, const at::Tensor& x, Trainer& t) {
    const TensorsFunction both = [&net](const std::vector<at::Tensor>& inputs) {
      return std::vector<at::Tensor>{net.hidden(inputs[0]), net.words->weight};
    };
    return region(t, both, {x});
  };
  expect_like_torch(
      mode(), [] { return std::make_shared<TiedHead>(); }, tied_steps(head));
}

TEST_P(TorchCheckpoint, ARegionThatReturnsItsInput) {
  expect_like_torch(mode(), region_net, [](Module& net, Trainer& t) {
    auto* const regions = net.as<Region>();
    const TensorsFunction both = [regions](const std::vector<at::Tensor>& inputs) {
      return std::vector<at::Tensor>{regions->out(torch::gelu(inputs[0])), inputs[0]};
    };
    for (int64_t i = 0; i < 3; ++i) {
      t.zero_grad();
      const auto out = region(t, both, {regions->in(wave({6, 8}, i, t.dtype))});
      (out[0].to(at::kFloat).square().mean() + out[1].to(at::kFloat).pow(2).mean()).backward();
      t.step();
    }
  });
}

TEST_P(TorchCheckpoint, ARegionThatReturnsABufferLeavesItAsItIs) {
  run_elixir(mode(), region_net, [](Module& net, Trainer& t) {
    const at::Tensor mask = wave({6, 4}, 7, t.dtype);
    const TensorsFunction both = [&](const std::vector<at::Tensor>& inputs) {
      return std::vector<at::Tensor>{net.as<Region>()->run(inputs[0]), mask};
    };
    const auto out = region(t, both, {wave({6, 8}, 0, t.dtype)});
    EXPECT_FALSE(mask.requires_grad());
    (out[0] * out[1]).to(at::kFloat).square().mean().backward();
    t.step();
  });
}

TEST_P(TorchCheckpoint, AnOutputOfARegionThatTheLossDoesNotUse) {
  const auto two_heads = [] {
    return torch::nn::Sequential(torch::nn::Linear(8, 4), torch::nn::Linear(8, 4)).ptr();
  };
  expect_like_torch(mode(), two_heads, [](Module& net, Trainer& t) {
    const auto heads = net.as<torch::nn::SequentialImpl>()->children();
    const TensorsFunction both = [&](const std::vector<at::Tensor>& inputs) {
      std::vector<at::Tensor> outputs;
      for (const auto& head : heads) {
        outputs.push_back(head->as<torch::nn::Linear>()->forward(inputs[0]));
      }
      return outputs;
    };
    for (int64_t i = 0; i < 4; ++i) {
      t.zero_grad();
      const auto out = region(t, both, {wave({6, 8}, i, t.dtype)});
      at::Tensor loss = out[0].to(at::kFloat).square().mean();
      if (i < 2) loss = loss + out[1].to(at::kFloat).square().mean();
      loss.backward();
      t.step();
    }
  });
}

// ---- which backward ----

TEST_P(TorchCheckpoint, AutogradGradThroughACheckpointedRegionIsRefused) {
  expect_error(mode(), region_net,
               [](Module& net, Trainer& t) {
                 const at::Tensor x = wave({6, 8}, 0, t.dtype).requires_grad_();
                 const auto body = [&](const at::Tensor& input) {
                   return net.as<Region>()->run(input);
                 };
                 torch::autograd::grad({elixir::checkpoint(body, x).sum()}, {x});
               },
               {"elixir::checkpoint", "backward() without inputs"});
}

TEST_P(TorchCheckpoint, BackwardThatMakesAGraphThroughARegionIsRefused) {
  expect_error(mode(), region_net,
               [](Module& net, Trainer& t) {
                 region_loss(net, 0, t).backward({}, /*retain_graph=*/true, /*create_graph=*/true);
               },
               {"create_graph through elixir::checkpoint()"});
}

// ---- what changes between forward and backward ----

TEST_P(TorchCheckpoint, AStepBetweenARegionAndItsBackwardIsRefusedAsTorchDoes) {
  expect_like_torch(mode(), region_net, [](Module& net, Trainer& t) {
    const at::Tensor loss = region_loss(net, 0, t);
    loss.backward({}, /*retain_graph=*/true);
    {
      const at::NoGradGuard evaluation;
      net.as<Region>()->run(wave({6, 8}, 1, t.dtype));
    }
    loss.backward({}, /*retain_graph=*/true);  // nothing has changed
    t.step();
    try {
      loss.backward();
      ADD_FAILURE() << "no error";
    } catch (const std::exception& failure) {
      EXPECT_THAT(failure.what(), ::testing::HasSubstr("modified by an inplace operation"));
    }
    region_steps(net, t);
  });
}

TEST_P(TorchCheckpoint, SetParameterBetweenARegionAndItsBackwardIsRefused) {
  expect_error(mode(), region_net,
               [](Module& net, Trainer& t) {
                 const at::Tensor loss = region_loss(net, 0, t);
                 t.set_parameter(parameter(net, "in.weight"), wave({16, 8}, 3));
                 loss.backward();
               },
               {"is at version", "set_parameter() came between"});
}

TEST_P(TorchCheckpoint, AnotherOptimizersStepBetweenARegionAndItsBackward) {
  Settings settings;
  settings.options.leave_out = [](const std::string& name, const at::Tensor&) {
    return name.starts_with("out.");
  };
  expect_like_torch(
      mode(), region_net,
      [](Module& module, Trainer& first) {
        auto& net = *module.as<Region>();
        Trainer& second = first.another(*net.out);
        for (int64_t i = 0; i < 3; ++i) {
          const auto body = [&](const at::Tensor& x) { return torch::gelu(net.in(x)); };
          const at::Tensor x = wave({6, 8}, i, first.dtype);
          const at::Tensor hidden = first.elixir() ? elixir::checkpoint(body, x) : body(x);
          net.out(hidden.detach()).to(at::kFloat).square().mean().backward();
          second.step();
          second.zero_grad();
          hidden.to(at::kFloat).square().mean().backward();
          first.step();
          first.zero_grad();
        }
      },
      settings);
}

// ---- the loss in slices ----

// The chunk of the weight comes and goes between the slices' operators.
void sliced_steps(Module& net, Trainer& t, bool in_slices) {
  auto& tied = *net.as<TiedHead>();
  for (int64_t i = 0; i < 3; ++i) {
    t.zero_grad();
    const at::Tensor x = (at::arange(6) + i).remainder(10), hidden = tied.hidden(x);
    at::Tensor targets = (x * 3 + 1).remainder(10);
    targets[2] = elixir::kIgnoredTarget;
    const at::Tensor loss =
        in_slices ? elixir::linear_cross_entropy(hidden, tied.words->weight, targets, 3)
                  : at::cross_entropy_loss(at::linear(hidden, tied.words->weight).to(at::kFloat),
                                           targets);
    loss.backward();
    t.step();
  }
}

TEST_P(TorchCheckpoint, TheLossInSlicesOfATiedHead) {
  Settings settings;
  settings.options.layout.chunk_numel = 128;
  settings.options.layout.rcache_blocks = 2;  // of 3 chunks
  expect_like_torch(
      mode(), [] { return std::make_shared<TiedHead>(); },
      [](Module& net, Trainer& t) { sliced_steps(net, t, t.elixir() != nullptr); }, settings);
}

// Its forward, too, is a step's, not an evaluation's: as many gathers as without slices.
TEST_P(TorchCheckpoint, TheLossInSlicesGathersAsOften) {
  Settings settings;
  settings.options.layout.chunk_numel = 128;
  settings.options.layout.rcache_blocks = 2;  // of 3 chunks
  std::mutex mutex;
  std::set<uint64_t> gathers[2];
  for (const bool in_slices : {false, true}) {
    run_elixir(
        mode(), [] { return std::make_shared<TiedHead>(); },
        [&](Module& net, Trainer& t) {
          sliced_steps(net, t, in_slices);
          const std::lock_guard lock(mutex);
          gathers[in_slices].insert(t.elixir()->stats().gathers);
        },
        settings);
  }
  EXPECT_EQ(gathers[0], gathers[1]);
}

// ---- inputs ----

TEST_P(TorchCheckpoint, ARegionThatWritesAnInputInPlaceIsRefused) {
  expect_error(mode(), region_net,
               [](Module& net, Trainer& t) {
                 const TensorsFunction body = [&](const std::vector<at::Tensor>& inputs) {
                   inputs[1].mul_(2);
                   return std::vector<at::Tensor>{net.as<Region>()->run(inputs[0] + inputs[1])};
                 };
                 elixir::checkpoint(body, {wave({6, 8}, 0, t.dtype), wave({6, 8}, 1, t.dtype)});
               },
               {"inputs[1] in place", "clone()"});
}

TEST_P(TorchCheckpoint, AnUndefinedInputOfARegionIsRefused) {
  expect_error(mode(), region_net,
               [](Module& net, Trainer& t) {
                 const TensorsFunction body = [&](const std::vector<at::Tensor>& inputs) {
                   return std::vector<at::Tensor>{net.as<Region>()->run(inputs[0])};
                 };
                 elixir::checkpoint(body, {wave({6, 8}, 0, t.dtype), at::Tensor()});
               },
               {"inputs[1] of elixir::checkpoint() is an undefined tensor"});
}

}  // namespace
}  // namespace elixir::test
