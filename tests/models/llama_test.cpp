#include "models/llama.h"

#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/models/named_shapes.h"

namespace elixir {
namespace {

planner::TransformerConfig tiny_llama(int64_t kv_heads) {
  return {.name = "tiny",
          .family = planner::Family::kLlama,
          .vocabulary = 50,
          .context = 16,
          .width = 32,
          .layers = 2,
          .heads = 4,
          .kv_heads = kv_heads,
          .mlp_width = 40,
          .tied = false};
}

TEST(Llama, NamesAndShapesAreHuggingFaces) {
  for (const int64_t kv_heads : {4, 2}) {
    expect_named_shapes(Llama(tiny_llama(kv_heads), {}), tiny_llama(kv_heads));
  }
}

TEST(Llama, LearnsFromAllParametersAndSeesNoLaterToken) {
  for (const int64_t kv_heads : {4, 2}) {
    Llama model(tiny_llama(kv_heads), {.checkpoint_activations = true});
    const at::Tensor tokens = at::randint(50, {2, 16}, at::kLong);
    const at::Tensor loss = model.loss(tokens, tokens);
    EXPECT_NEAR(loss.item<double>(), std::log(50.0), 0.3);
    loss.backward();
    expect_gradients(model);
    expect_causal(tokens, [&](const at::Tensor& x) { return model.forward(x); });
  }
}

// Rotary positions: the same tokens elsewhere mean the same to each other, so that a sequence of
// one token repeated has the same logits at every place, while swapped tokens change them.
TEST(Llama, KnowsPlacesByDistanceAlone) {
  Llama model(tiny_llama(4), {});
  const at::Tensor repeated = at::randint(7, 8, {1, 16}, at::kLong);
  const at::Tensor logits = model.forward(repeated);
  EXPECT_LT((logits.select(1, 15) - logits.select(1, 0)).abs().max().item<double>(), 1e-5);
  at::Tensor first = repeated.clone(), second = repeated.clone();
  first.select(1, 3).fill_(9);
  second.select(1, 4).fill_(9);
  const at::Tensor at_three = model.forward(first).select(1, 15);
  EXPECT_GT((at_three - model.forward(second).select(1, 15)).abs().max().item<double>(), 0);
}

}  // namespace
}  // namespace elixir
