// Regions of elixir::checkpoint as torch's users write them, with the same program without regions
// and torch::optim::AdamW beside: equal weights, or an error that names the remedy. The rows of
// docs/torch_ways.md name these tests.

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/autograd.h>
#include <torch/nn/modules.h>

#include <mutex>
#include <set>

#include "tests/client/torch_ways.h"
#include "tests/support/matchers.h"

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
  explicit Region(double dropped = 0) : dropout(dropped) {
    in = register_module("in", torch::nn::Linear(8, 16));
    out = register_module("out", torch::nn::Linear(16, 4));
  }
  at::Tensor run(const at::Tensor& x) {
    return out(torch::dropout(torch::gelu(in(x)), dropout, /*train=*/true));
  }
  // Elixir's regions run anew in backward, with the numbers of their forward.
  at::Tensor loss(int64_t number, Trainer& t, bool in_region = true) {
    const at::Tensor x = wave({6, 8}, number, t.dtype).requires_grad_(dropout == 0);
    const auto body = [this](const at::Tensor& input) { return run(input); };
    const at::Tensor y = in_region && t.elixir() ? elixir::checkpoint(body, x) : run(x);
    // More of the generator's numbers before backward.
    return torch::dropout(y, dropout / 2, /*train=*/true).to(at::kFloat).square().mean();
  }
  const double dropout;
  torch::nn::Linear in{nullptr}, out{nullptr};
};

const Settings kRegions{.build = made<Region>};

at::Tensor region_loss(Module& net, int64_t number, Trainer& t) {
  return net.as<Region>()->loss(number, t);
}

const Program kRegionSteps =
    steps(3, [](Module& net, Trainer& t, int64_t i) { region_loss(net, i, t).backward(); });

TEST_P(TorchCheckpoint, CheckpointedRegions) { like_torch(kRegions, kRegionSteps); }

Program autocast_steps(bool in_regions, bool autocast) {
  return steps(4, [=](Module& net, Trainer& t, int64_t i) {
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, autocast);
    const at::Tensor loss = net.as<Region>()->loss(i, t, in_regions);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    loss.backward();
  });
}

TEST_P(TorchCheckpoint, DropoutOfAFixedSeed) {
  if (mode().ranks > 1) GTEST_SKIP() << "ranks are threads, and a process has one generator";
  Settings settings{.build = [] { return std::make_shared<Region>(0.5); }};
  for (const bool in_regions : {false, true}) {
    for (const bool autocast : {false, true}) {
      if (autocast && !(in_regions && fp32())) continue;  // nothing to cast
      SCOPED_TRACE(fmt::format("in regions {}, autocast {}", in_regions, autocast));
      settings.tolerance = autocast ? 1e-4 : 1e-6;
      like_torch(settings, [&](Module& net, Trainer& t) {
        at::manual_seed(11);
        autocast_steps(in_regions, autocast)(net, t);
      });
    }
  }
}

TEST_P(TorchCheckpoint, CheckpointedRegionsUnderAutocast) {
  if (!fp32()) GTEST_SKIP() << "nothing to cast";
  like_torch({.build = made<Region>, .tolerance = 1e-4}, autocast_steps(true, true));
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
  return steps(3, [head](Module& net, Trainer& t, int64_t i) {
    auto& tied = *net.as<TiedHead>();
    const std::vector<at::Tensor> out = head(tied, (at::arange(6) + i).remainder(10), t);
    out[0].mm(out[1].t()).to(at::kFloat).square().mean().backward();
    EXPECT_TRUE(tied.words->weight.is_leaf());
  });
}

TEST_P(TorchCheckpoint, ARegionThatReturnsAParameter) {
  const Head head = [](TiedHead& net, const at::Tensor& x, Trainer& t) {
    const at::Tensor hidden = net.hidden(x);
    const TensorsFunction weight = [&net](const std::vector<at::Tensor>&) {
      return std::vector<at::Tensor>{net.words->weight};
    };
    return std::vector<at::Tensor>{hidden, region(t, weight, {hidden})[0]};
  };
  like_torch({.build = made<TiedHead>}, tied_steps(head));
}

TEST_P(TorchCheckpoint, ARegionThatReturnsAParameterForATiedHead) {
  const Head head = [](TiedHead& net, const at::Tensor& x, Trainer& t) {
    const TensorsFunction both = [&net](const std::vector<at::Tensor>& inputs) {
      return std::vector<at::Tensor>{net.hidden(inputs[0]), net.words->weight};
    };
    return region(t, both, {x});
  };
  like_torch({.build = made<TiedHead>}, tied_steps(head));
}

TEST_P(TorchCheckpoint, ARegionThatReturnsItsInput) {
  like_torch(
      kRegions, steps(3, [](Module& net, Trainer& t, int64_t i) {
        auto* const regions = net.as<Region>();
        const TensorsFunction both = [regions](const std::vector<at::Tensor>& inputs) {
          return std::vector<at::Tensor>{regions->out(torch::gelu(inputs[0])), inputs[0]};
        };
        const auto out = region(t, both, {regions->in(wave({6, 8}, i, t.dtype))});
        (out[0].to(at::kFloat).square().mean() + out[1].to(at::kFloat).pow(2).mean()).backward();
      }));
}

TEST_P(TorchCheckpoint, ARegionThatReturnsABufferLeavesItAsItIs) {
  elixir_alone(kRegions, [](Module& net, Trainer& t) {
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
  like_torch({.build = two_heads}, steps(4, [](Module& net, Trainer& t, int64_t i) {
               const auto heads = net.as<torch::nn::SequentialImpl>()->children();
               const TensorsFunction both = [&](const std::vector<at::Tensor>& inputs) {
                 std::vector<at::Tensor> outputs;
                 for (const auto& head : heads) {
                   outputs.push_back(head->as<torch::nn::Linear>()->forward(inputs[0]));
                 }
                 return outputs;
               };
               const auto out = region(t, both, {wave({6, 8}, i, t.dtype)});
               at::Tensor loss = out[0].to(at::kFloat).square().mean();
               if (i < 2) loss = loss + out[1].to(at::kFloat).square().mean();
               loss.backward();
             }));
}

// ---- which backward ----

TEST_P(TorchCheckpoint, AutogradGradThroughACheckpointedRegionIsRefused) {
  refused({"elixir::checkpoint", "backward() without inputs"}, kRegions,
          [](Module& net, Trainer& t) {
            const at::Tensor x = wave({6, 8}, 0, t.dtype).requires_grad_();
            const auto body = [&](const at::Tensor& input) { return net.as<Region>()->run(input); };
            torch::autograd::grad({elixir::checkpoint(body, x).sum()}, {x});
          });
}

TEST_P(TorchCheckpoint, BackwardThatMakesAGraphThroughARegionIsRefused) {
  refused({"create_graph through elixir::checkpoint()"}, kRegions, [](Module& net, Trainer& t) {
    region_loss(net, 0, t).backward({}, /*retain_graph=*/true, /*create_graph=*/true);
  });
}

// ---- what changes between forward and backward ----

TEST_P(TorchCheckpoint, AStepBetweenARegionAndItsBackwardIsRefusedAsTorchDoes) {
  like_torch(kRegions, [](Module& net, Trainer& t) {
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
      EXPECT_THAT(failure.what(), HasSubstr("modified by an inplace operation"));
    }
    kRegionSteps(net, t);
  });
}

TEST_P(TorchCheckpoint, SetParameterBetweenARegionAndItsBackwardIsRefused) {
  refused({"is at version", "set_parameter() came between"}, kRegions, [](Module& net, Trainer& t) {
    const at::Tensor loss = region_loss(net, 0, t);
    t.set_parameter(parameter(net, "in.weight"), wave({16, 8}, 3));
    loss.backward();
  });
}

TEST_P(TorchCheckpoint, AnotherOptimizersStepBetweenARegionAndItsBackward) {
  Settings settings = kRegions;
  settings.options.leave_out = [](const std::string& name, const at::Tensor&) {
    return name.starts_with("out.");
  };
  like_torch(settings, [](Module& module, Trainer& first) {
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
  });
}

// ---- the loss in slices ----

// The chunk of the weight comes and goes between the slices' operators.
const Settings kTwoBlocks{.build = made<TiedHead>,
                          .options = {.layout = {.chunk_numel = 128, .rcache_blocks = 2}}};  // of 3

void sliced_step(Module& net, int64_t i, bool in_slices) {
  auto& tied = *net.as<TiedHead>();
  const at::Tensor x = (at::arange(6) + i).remainder(10), hidden = tied.hidden(x);
  at::Tensor targets = (x * 3 + 1).remainder(10);
  targets[2] = elixir::kIgnoredTarget;
  const at::Tensor loss =
      in_slices
          ? elixir::linear_cross_entropy(hidden, tied.words->weight, targets, 3)
          : at::cross_entropy_loss(at::linear(hidden, tied.words->weight).to(at::kFloat), targets);
  loss.backward();
}

TEST_P(TorchCheckpoint, TheLossInSlicesOfATiedHead) {
  like_torch(kTwoBlocks, steps(3, [](Module& net, Trainer& t, int64_t i) {
               sliced_step(net, i, t.elixir() != nullptr);
             }));
}

// Its forward, too, is a step's, not an evaluation's: as many gathers as without slices.
TEST_P(TorchCheckpoint, TheLossInSlicesGathersAsOften) {
  std::mutex mutex;
  std::set<uint64_t> gathers[2];
  for (const bool in_slices : {false, true}) {
    elixir_alone(kTwoBlocks, [&](Module& net, Trainer& t) {
      steps(3, [&](Module&, Trainer&, int64_t i) { sliced_step(net, i, in_slices); })(net, t);
      const std::lock_guard lock(mutex);
      gathers[in_slices].insert(t.elixir()->stats().gathers);
    });
  }
  EXPECT_EQ(gathers[0], gathers[1]);
}

// ---- inputs ----

TEST_P(TorchCheckpoint, ARegionThatWritesAnInputInPlaceIsRefused) {
  refused({"inputs[1] in place", "clone()"}, kRegions, [](Module& net, Trainer& t) {
    const TensorsFunction body = [&](const std::vector<at::Tensor>& inputs) {
      inputs[1].mul_(2);
      return std::vector<at::Tensor>{net.as<Region>()->run(inputs[0] + inputs[1])};
    };
    elixir::checkpoint(body, {wave({6, 8}, 0, t.dtype), wave({6, 8}, 1, t.dtype)});
  });
}

TEST_P(TorchCheckpoint, AnUndefinedInputOfARegionIsRefused) {
  refused({"inputs[1] of elixir::checkpoint() is an undefined tensor"}, kRegions,
          [](Module& net, Trainer& t) {
            const TensorsFunction body = [&](const std::vector<at::Tensor>& inputs) {
              return std::vector<at::Tensor>{net.as<Region>()->run(inputs[0])};
            };
            elixir::checkpoint(body, {wave({6, 8}, 0, t.dtype), at::Tensor()});
          });
}

}  // namespace
}  // namespace elixir::test
