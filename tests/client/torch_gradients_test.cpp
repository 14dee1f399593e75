// Gradients as torch's users handle them, with torch::optim::AdamW beside: equal weights, or an
// error that names the remedy. The rows of docs/torch_ways.md name these tests.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules.h>

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "tests/client/torch_ways.h"

namespace elixir::test {
namespace {

using torch::nn::Module;

class TorchGradients : public InEveryMode {};
IN_EVERY_MODE(TorchGradients);
IN_BF16_ON_TWO_RANKS(TorchGradients);

TEST_P(TorchGradients, SeveralBackwardPassesAddUp) {
  like_torch(steps(3, [](Module& net, Trainer& t, int64_t i) {
    net_loss(net, i, t).backward();
    net_loss(net, i + 20, t).backward();
  }));
}

TEST_P(TorchGradients, DoubleBackward) {
  if (!fp32()) GTEST_SKIP() << "a second derivative in BF16 is mostly rounding";
  like_torch(steps(3, [](Module& net, Trainer&, int64_t i) {
    const at::Tensor x = wave({6, 8}, i).requires_grad_();
    const at::Tensor y = net.as<torch::nn::SequentialImpl>()->forward(x).square().mean();
    const at::Tensor slope =
        torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
    (y + slope.square().sum()).backward();
  }));
}

TEST_P(TorchGradients, BackwardThatMakesAGraph) {
  like_torch(steps(3, [](Module& net, Trainer& t, int64_t i) {
    net_loss(net, i, t).backward({}, /*retain_graph=*/true, /*create_graph=*/true);
    net_loss(net, i + 30, t).backward({}, /*retain_graph=*/true, /*create_graph=*/true);
  }));
}

TEST_P(TorchGradients, BackwardThatKeepsItsGraph) {
  like_torch(steps(3, [](Module& net, Trainer& t, int64_t i) {
    const at::Tensor loss = net_loss(net, i, t);
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
  }));
}

TEST_P(TorchGradients, PartialBackward) {
  like_torch(steps(3, [](Module& net, Trainer& t, int64_t i) {
    const at::Tensor y = net_output(net, i, t).to(at::kFloat);
    y.narrow(1, 0, 1).square().mean().backward({}, /*retain_graph=*/true);
    y.narrow(1, 1, 3).square().mean().backward();
  }));
}

TEST_P(TorchGradients, BackwardWithInputs) {
  like_torch(steps(3, [](Module& net, Trainer& t, int64_t i) {
    std::vector<at::Tensor> weights, biases;
    for (const auto& p : net.parameters()) (p.dim() > 1 ? weights : biases).push_back(p);
    const at::Tensor loss = net_loss(net, i, t);
    loss.backward({}, true, false, at::TensorList(weights));
    loss.backward({}, false, false, at::TensorList(biases));
  }));
}

TEST_P(TorchGradients, AutogradGradLeavesNoTrace) {
  like_torch(steps(3, [](Module& net, Trainer& t, int64_t i) {
    net_loss(net, i, t).backward();
    torch::autograd::grad({net_loss(net, i + 50, t)}, net.parameters());
  }));
}

TEST_P(TorchGradients, GradientsAssignedByHand) {
  like_torch(steps(3, [](Module& net, Trainer& t, int64_t i) {
    const auto grads = torch::autograd::grad({net_loss(net, i, t)}, net.parameters());
    size_t at = 0;
    for (auto& p : net.parameters()) p.mutable_grad() = grads[at++] * 0.5;
  }));
}

TEST_P(TorchGradients, GradientsAssignedAreAddedToByBackward) {
  like_torch(steps(3, [](Module& net, Trainer& t, int64_t i) {
    for (auto& p : net.parameters()) p.mutable_grad() = at::full_like(p, 0.125).detach();
    net_loss(net, i, t).backward();
  }));
}

TEST_P(TorchGradients, AssignedInThePlaceOfWhatHasGone) {
  like_torch(steps(3, [](Module& net, Trainer& t, int64_t i) {
    net_loss(net, i + 50, t).backward();
    const auto grads = torch::autograd::grad({net_loss(net, i, t)}, net.parameters());
    size_t at = 0;
    for (auto& p : net.parameters()) p.mutable_grad() = grads[at++].clone();
  }));
}

TEST_P(TorchGradients, AnAssignedGradientOfAnotherShapeIsRefused) {
  refused({"'0.weight'", "shape"}, [](Module& net, Trainer& t) {
    parameter(net, "0.weight").mutable_grad() = at::zeros({3}, t.dtype);
    t.step();
  });
}

TEST_P(TorchGradients, AnExceptionHalfWayThenZeroGradOrNot) {
  for (const bool dropped : {true, false}) {
    SCOPED_TRACE(dropped);
    like_torch([&](Module& net, Trainer& t) {
      bool throws = true;
      parameter(net, "0.weight").register_hook([&](const at::Tensor& grad) {
        if (throws) throw std::runtime_error("half-way");
        return grad;
      });
      for (int64_t i = 0; i < 3; ++i) {
        t.zero_grad();
        throws = true;
        EXPECT_ANY_THROW(net_loss(net, i + 50, t).backward());
        throws = false;
        if (dropped) t.zero_grad();  // else the last layer's gradients of before count, too
        net_loss(net, i, t).backward();
        t.step();
      }
    });
  }
}

TEST_P(TorchGradients, HooksChangeGradients) {
  const Build build = net_with([](Module& net) {
    net.parameters()[0].register_hook([](const at::Tensor& grad) { return grad * 2; });
  });
  like_torch({.build = build}, [](Module& net, Trainer& t) {
    parameter(net, "2.weight").register_hook([](const at::Tensor& grad) {
      return grad.clamp(-0.01, 0.01);
    });
    plain_steps(0, 3, net, t);
  });
}

// What torch's Python interface calls register_post_accumulate_grad_hook.
struct CountHook final : torch::autograd::PostAccumulateGradHook {
  explicit CountHook(double* total) : sum(total) {}
  void operator()(const torch::autograd::Variable& tensor) override {
    *sum += tensor.grad().to(at::kDouble).abs().sum().item<double>();
  }
  double* sum;
};

TEST_P(TorchGradients, APostAccumulateHookOfBeforeSeesTheGradient) {
  std::vector<double> sums(mode().ranks + 1);  // torch's run is the last
  std::atomic<size_t> built{0};
  const Build build = net_with([&](Module& net) {
    torch::autograd::impl::set_post_acc_grad_hooks(net.parameters()[0],
                                                   std::make_unique<CountHook>(&sums.at(built++)));
  });
  like_torch({.build = build}, kThreeSteps);
  EXPECT_GT(sums.back(), 0);
  for (const double sum : sums) EXPECT_NEAR(sum, sums.back(), closeness() * sums.back());
}

TEST_P(TorchGradients, APostAccumulateHookOfAfterIsRefused) {
  double sum = 0;
  refused({"'0.weight'", "post-accumulate-grad hook", "register_hook"},
          [&](Module& net, Trainer& t) {
            torch::autograd::impl::set_post_acc_grad_hooks(parameter(net, "0.weight"),
                                                           std::make_unique<CountHook>(&sum));
            plain_step(net, t, 0);
          });
}

TEST_P(TorchGradients, ZeroGradDropsADiscardedBackward) {
  const std::function<void(Module&, Trainer&)> ways[] = {
      [](Module&, Trainer& t) { t.zero_grad(); },
      [](Module& net, Trainer&) { net.zero_grad(); },
      [](Module& net, Trainer&) { net.zero_grad(/*set_to_none=*/false); },
  };
  for (const auto& zero_grad : ways) {
    like_torch([&](Module& net, Trainer& t) {
      for (int64_t i = 0; i < 3; ++i) {
        net_loss(net, i + 50, t).backward();
        zero_grad(net, t);
        net_loss(net, i, t).backward();
        t.step();
        net.zero_grad();
      }
    });
  }
}

TEST_P(TorchGradients, ModuleZeroGradBeforeABackwardOfOtherParameters) {
  like_torch(steps(3, [](Module& net, Trainer& t, int64_t i) {
    loss_of_first_layer(net, i, t).backward();
    net.zero_grad();
    net_loss(net, i, t).backward();
  }));
}

// With the host exchange rank 1 is at the second backward that counts before rank 0 drops its
// first.
TEST_P(TorchGradients, ADroppedBackwardBeforeSeveral) {
  std::atomic<int64_t> ahead{-1};
  like_torch([&](Module& net, Trainer& t) {
    const bool apart = t.elixir() && mode().ranks == 2 && mode().exchange == shm::Exchange::kHost;
    for (int64_t i = 0; i < 6; ++i) {
      t.zero_grad();
      net_loss(net, i + 50, t).backward();
      if (apart && t.ranks[0] == 0) {
        for (int64_t step = ahead; step < i; step = ahead) ahead.wait(step);
      }
      t.zero_grad();
      net_loss(net, i, t).backward();
      if (apart && t.ranks[0] == 1) {
        ahead = i;
        ahead.notify_all();
      }
      net_loss(net, i + 20, t).backward();
      if (i % 2 == 0) net_loss(net, i + 40, t).backward();
      t.step();
    }
  });
}

TEST_P(TorchGradients, SeveralDroppedBackwardsBeforeSeveral) {
  like_torch([](Module& net, Trainer& t) {
    for (int64_t i = 0; i < 6; ++i) {
      for (int64_t dropped = 0; dropped < i; ++dropped) {
        net_loss(net, i + 50, t).backward();
        if (dropped % 2 == 1) net_loss(net, i + 60, t).backward();
        t.zero_grad();
      }
      net_loss(net, i, t).backward();
      net_loss(net, i + 20, t).backward();
      t.step();
      t.zero_grad();
    }
  });
}

TEST_P(TorchGradients, OneGradientResetAloneIsRefused) {
  refused({"'0.bias'", "zero_grad()"}, [](Module& net, Trainer& t) {
    net_loss(net, 0, t).backward();
    parameter(net, "0.bias").mutable_grad().reset();
    t.step();
  });
}

TEST_P(TorchGradients, ReadingAGradientThatHasGoneIsRefused) {
  const std::vector<std::string> texts = {"gradient of '0.weight', which has gone to elixird",
                                          "register_hook"};
  refused(texts, [](Module& net, Trainer& t) {
    net_loss(net, 0, t).backward();
    const at::Tensor weight = parameter(net, "0.weight");
    EXPECT_TRUE(weight.grad().defined());
    EXPECT_EQ(weight.grad().sizes(), weight.sizes());
    EXPECT_ANY_THROW(weight.grad().data_ptr());
    weight.grad().norm();
  });
}

// As torch, which leaves a parameter alone whose .grad is undefined.
// Neither decay nor moments move them, and their own count of steps stands still.
TEST_P(TorchGradients, UnusedParametersStayAsTheyAre) {
  like_torch([](Module& net, Trainer& t) {
    const auto first_alone = [&](int64_t i) {
      t.zero_grad();
      loss_of_first_layer(net, i, t).backward();
      t.step();
    };
    first_alone(0);
    plain_steps(1, 2, net, t);
    first_alone(3);
    t.zero_grad();
    t.step();  // nothing at all
    plain_steps(4, 2, net, t);
  });
}

TEST_P(TorchGradients, AGraphOfBeforeTheStepIsRefusedAsTorchDoes) {
  like_torch([](Module& net, Trainer& t) {
    const at::Tensor x = wave({6, 8}, 0, t.dtype).requires_grad_();
    const at::Tensor y = net.as<torch::nn::SequentialImpl>()->forward(x);
    const at::Tensor loss = y.to(at::kFloat).square().mean();
    loss.backward({}, /*retain_graph=*/true);
    t.step();
    EXPECT_ANY_THROW(loss.backward());
    t.zero_grad();
    plain_steps(0, 2, net, t);
  });
}

}  // namespace
}  // namespace elixir::test
