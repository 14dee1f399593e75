// Activation checkpointing: the bits of plain backward, less memory, and what it refuses.

#include "client/tensors/checkpoint.h"

#include <ATen/ATen.h>

#include "tests/support/matchers.h"

namespace elixir::test {
namespace {

struct Weights {
  at::Tensor first = at::randn({8, 16}).requires_grad_();
  at::Tensor second = at::randn({16, 8}).requires_grad_();

  at::Tensor forward(const at::Tensor& x) const {
    return at::dropout(at::gelu(x.mm(first)), 0.3, true).mm(second);
  }
};

struct Gradients {
  at::Tensor x, first, second;
};

Gradients gradients(bool checkpointed, bool input_needs_gradient) {
  at::manual_seed(5);
  const Weights weights;
  const at::Tensor x = at::randn({4, 8}).requires_grad_(input_needs_gradient);
  const auto body = [&](const at::Tensor& input) { return weights.forward(input); };
  const at::Tensor middle = checkpointed ? checkpoint(body, x) : body(x);
  const at::Tensor after = at::dropout(middle, 0.3, true);  // more random numbers
  (checkpointed ? checkpoint(body, after) : body(after)).pow(2).sum().backward();
  return {x.grad(), weights.first.grad(), weights.second.grad()};
}

TEST(Checkpoint, GivesTheBitsOfPlainBackwardWithDropout) {
  for (const bool input_needs_gradient : {true, false}) {
    const Gradients plain = gradients(false, input_needs_gradient);
    const Gradients again = gradients(true, input_needs_gradient);
    EXPECT_EQ(again.x.defined(), input_needs_gradient);
    if (input_needs_gradient) {
      EXPECT_TRUE(at::equal(again.x, plain.x));
    }
    EXPECT_TRUE(at::equal(again.first, plain.first));
    EXPECT_TRUE(at::equal(again.second, plain.second));
  }
}

TEST(Checkpoint, LeavesTheRandomNumbersThatFollowAsTheyWere) {
  const auto next = [](bool checkpointed) {
    gradients(checkpointed, true);
    return at::rand({4});
  };
  EXPECT_TRUE(at::equal(next(false), next(true)));
}

TEST(Checkpoint, RunsTheFunctionAgainInBackwardAlone) {
  int calls = 0;
  const auto body = [&](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    ++calls;
    return {in[0] * in[1], in[0] + in[1]};
  };
  const at::Tensor a = at::rand({3}).requires_grad_(), b = at::rand({3});
  const std::vector<at::Tensor> out = checkpoint(body, {a, b});
  EXPECT_EQ(calls, 1);
  out[0].sum().backward();  // the other output takes no part
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(at::equal(a.grad(), b));
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(checkpoint(body, {a, b})[0].requires_grad());
  EXPECT_EQ(calls, 3);
}

TEST(Checkpoint, MayBeNested) {
  const Weights weights;
  const at::Tensor x = at::rand({4, 8});
  const auto inner = [&](const at::Tensor& input) { return input.mm(weights.first).tanh(); };
  const auto outer = [&](const at::Tensor& input) {
    return checkpoint(inner, input).mm(weights.second);
  };
  checkpoint(outer, x).sum().backward();
  const at::Tensor first = weights.first.grad().clone();
  weights.first.mutable_grad().reset();
  inner(x).mm(weights.second).sum().backward();
  EXPECT_TRUE(at::equal(first, weights.first.grad()));
}

TEST(Checkpoint, AFunctionThatReturnsAnotherNumberOfTensorsIsRefused) {
  int calls = 0;
  const auto body = [&](const std::vector<at::Tensor>& in) {
    std::vector<at::Tensor> out = {in[0] * 2};
    if (++calls > 1) out.push_back(in[0] * 3);
    return out;
  };
  const at::Tensor a = at::rand({3}).requires_grad_();
  const at::Tensor loss = checkpoint(body, {a})[0].sum();
  try {
    loss.backward();
    FAIL() << "nothing was refused";
  } catch (const std::exception& failure) {
    EXPECT_THAT(failure.what(), HasSubstr("1 tensors in forward and 2 in backward"));
  }
}

}  // namespace
}  // namespace elixir::test
