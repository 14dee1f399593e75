#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "models/decoder.h"
#include "tests/models/built.h"
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
    expect_named_shapes(*built(tiny_llama(kv_heads)), tiny_llama(kv_heads));
  }
}

TEST(Llama, LearnsFromAllParametersAndSeesNoLaterToken) {
  for (const int64_t kv_heads : {4, 2}) {
    const std::shared_ptr<Decoder> model =
        built(tiny_llama(kv_heads), {.checkpoint_activations = true});
    const at::Tensor tokens = at::randint(50, {2, 16}, at::kLong);
    const at::Tensor loss = model->loss(tokens, tokens);
    EXPECT_NEAR(loss.item<double>(), std::log(50.0), 0.3);
    loss.backward();
    expect_gradients(*model);
    expect_causal(tokens, [&](const at::Tensor& x) { return model->forward(x); });
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
    const std::shared_ptr<Decoder> model = built(config, {.checkpoint_activations = true});
    expect_named_shapes(*model, config);
    const at::Tensor tokens = at::randint(50, {4, 16}, at::kLong);
    model->loss(tokens, tokens).backward();
    expect_gradients(*model);
    model->eval();
    if (config.experts == 0) {
      expect_causal(tokens, [&](const at::Tensor& x) { return model->forward(x); });
      continue;
    }
    // Which tokens an expert multiplies at once follows from all of them, and the last bits from
    // that.
    at::Tensor changed = tokens.clone();
    changed.select(1, 15).fill_(1);
    const at::Tensor before = model->forward(tokens).narrow(1, 0, 15);
    EXPECT_LT((model->forward(changed).narrow(1, 0, 15) - before).abs().max().item<double>(), 1e-4);
  }
}

// Logits of 100 MiB, of which the loss holds a part at a time, against those of forward(): the
// families' heads, tied and not, and Gemma 2's softcap.
TEST(Llama, TheLossOfManyLogitsIsThatOfTheWhole) {
  planner::TransformerConfig untied = tiny_llama(2), capped = tiny_llama(2);
  capped.four_norms = capped.gelu = capped.tied = true;
  capped.final_softcap = 0.01;  // as large as logits at the start
  planner::TransformerConfig opt = tiny_llama(4), gpt2 = tiny_llama(4);
  opt.family = planner::Family::kOpt;
  gpt2.family = planner::Family::kGpt2;
  gpt2.tied = true;
  for (planner::TransformerConfig config : {untied, capped, opt, gpt2}) {
    SCOPED_TRACE(static_cast<int>(config.family));
    config.vocabulary = 102400;
    const std::shared_ptr<Decoder> model = built(config);
    const at::Tensor tokens = at::randint(config.vocabulary, {16, 16}, at::kLong);
    const at::Tensor targets = tokens.roll(1, 1);
    const at::Tensor loss = model->loss(tokens, targets);
    EXPECT_THROW(loss.backward({}, true, /*create_graph=*/true), Error) << "not in slices";
    loss.backward();
    std::vector<at::Tensor> gradients;
    for (at::Tensor& parameter : model->parameters()) {
      gradients.push_back(parameter.grad());
      parameter.mutable_grad() = at::Tensor();
    }
    // In FP64: torch's sum of so many exponentials that are alike is off by 2e-6 in FP32.
    const at::Tensor logits = model->forward(tokens).to(at::kDouble);
    const at::Tensor whole =
        at::cross_entropy_loss(logits.view({-1, config.vocabulary}), targets.view({-1}));
    whole.backward();
    EXPECT_NEAR(loss.item<double>() / whole.item<double>(), 1, 1e-6);
    for (size_t i = 0; i < gradients.size(); ++i) {
      const at::Tensor expected = model->parameters()[i].grad();
      EXPECT_LT((gradients[i] - expected).abs().max().item<double>(),
                1e-5 * expected.abs().max().item<double>() + 1e-9)
          << model->named_parameters().items()[i].key();
    }
  }
}

// Against every expert on every token, weighted by the router's choice: Jiang et al., arXiv
// 2401.04088, section 2.1.
TEST(Llama, EachTokenGoesToItsExperts) {
  const at::NoGradGuard no_grad;
  planner::TransformerConfig config = tiny_llama(4);
  config.experts = 4;
  config.experts_per_token = 2;
  config.layers = 1;
  const std::shared_ptr<Decoder> model = built(config);
  auto all = model->named_parameters();
  const auto weight = [&](const std::string& name) {
    return all["model.layers.0." + name + ".weight"];
  };
  weight("self_attn.o_proj").zero_();  // the MLP alone
  const at::Tensor tokens = at::randint(50, {2, 16}, at::kLong);
  const at::Tensor x = at::embedding(all["model.embed_tokens.weight"], tokens);
  const at::Tensor in = at::rms_norm(x, {32}, weight("post_attention_layernorm"), 1e-5);
  const at::Tensor shares = at::softmax(at::linear(in, weight("block_sparse_moe.gate")), -1);
  const at::Tensor least = std::get<0>(shares.topk(2, -1)).select(-1, 1).unsqueeze(-1);
  const at::Tensor chosen = at::where(shares >= least, shares, at::zeros_like(shares));
  const at::Tensor weights = chosen / chosen.sum(-1, true);
  at::Tensor sum = at::zeros_like(x);
  for (int64_t i = 0; i < 4; ++i) {
    const std::string expert = "block_sparse_moe.experts." + std::to_string(i) + ".";
    const at::Tensor inner =
        at::silu(at::linear(in, weight(expert + "w1"))) * at::linear(in, weight(expert + "w3"));
    sum = sum + weights.narrow(-1, i, 1) * at::linear(inner, weight(expert + "w2"));
  }
  const at::Tensor out = at::rms_norm(x + sum, {32}, all["model.norm.weight"], 1e-5);
  const at::Tensor expected = at::linear(out, all["lm_head.weight"]);
  EXPECT_LT((model->forward(tokens) - expected).abs().max().item<double>(), 1e-5);
  EXPECT_GT(sum.abs().max().item<double>(), 1e-6);
}

// Rotary positions: the same tokens elsewhere mean the same to each other, so that a sequence of
// one token repeated has the same logits at every place, while swapped tokens change them.
TEST(Llama, KnowsPlacesByDistanceAlone) {
  const std::shared_ptr<Decoder> model = built(tiny_llama(4));
  const at::Tensor repeated = at::randint(7, 8, {1, 16}, at::kLong);
  const at::Tensor logits = model->forward(repeated);
  EXPECT_LT((logits.select(1, 15) - logits.select(1, 0)).abs().max().item<double>(), 1e-5);
  at::Tensor first = repeated.clone(), second = repeated.clone();
  first.select(1, 3).fill_(9);
  second.select(1, 4).fill_(9);
  const at::Tensor at_three = model->forward(first).select(1, 15);
  EXPECT_GT((at_three - model->forward(second).select(1, 15)).abs().max().item<double>(), 0);
}

}  // namespace
}  // namespace elixir
