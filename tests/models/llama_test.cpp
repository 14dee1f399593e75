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

struct Relative {
  const char* name;
  void (*change)(planner::TransformerConfig* config);
};
constexpr Relative kRelatives[] = {
    {"mistral nemo", [](planner::TransformerConfig* config) { config->head_width = 12; }},
    {"qwen2", [](planner::TransformerConfig* config) { config->qkv_bias = true; }},
    {"qwen3",
     [](planner::TransformerConfig* config) {
       config->head_width = 16;
       config->qk_norm = true;
     }},
    {"gemma2",
     [](planner::TransformerConfig* config) {
       config->head_width = 16;
       config->four_norms = config->gelu = config->tied = true;
       config->final_softcap = 30;
     }},
    {"gemma3",
     [](planner::TransformerConfig* config) {
       config->head_width = 16;
       config->four_norms = config->gelu = config->tied = config->qk_norm = true;
     }},
    {"phi3", [](planner::TransformerConfig* config) { config->fused_projections = true; }},
    {"mixtral",
     [](planner::TransformerConfig* config) {
       config->experts = 4;
       config->experts_per_token = 2;
     }},
};

TEST(Llama, ItsRelativesHaveTheirParametersUseThemAllAndSeeNoLaterToken) {
  for (const Relative& relative : kRelatives) {
    SCOPED_TRACE(relative.name);
    planner::TransformerConfig config = tiny_llama(2);
    relative.change(&config);
    Llama model(config, {.checkpoint_activations = true});
    expect_named_shapes(model, config);
    const at::Tensor tokens = at::randint(50, {4, 16}, at::kLong);
    model.loss(tokens, tokens).backward();
    expect_gradients(model);
    model.eval();
    expect_causal(tokens, [&](const at::Tensor& x) { return model.forward(x); });
  }
}

TEST(Llama, EachTokenGoesToItsExperts) {
  planner::TransformerConfig config = tiny_llama(4);
  config.experts = 3;
  config.experts_per_token = 1;
  config.layers = 1;
  Llama model(config, {});
  const at::Tensor tokens = at::randint(50, {2, 16}, at::kLong);
  const at::Tensor before = model.forward(tokens);
  // A token's output is the same alone as among others.
  EXPECT_LT(
      (model.forward(tokens.narrow(0, 0, 1)) - before.narrow(0, 0, 1)).abs().max().item<double>(),
      1e-5);
  // Experts that do nothing are noticed.
  {
    const at::NoGradGuard no_grad;
    for (auto& parameter : model.named_parameters()) {
      if (parameter.key().ends_with("w2.weight")) parameter.value().zero_();
    }
  }
  EXPECT_GT((model.forward(tokens) - before).abs().max().item<double>(), 1e-4);
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
