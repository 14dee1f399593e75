#include <ATen/Functions.h>

#include <cmath>
#include <string>

#include "models/decoder.h"
#include "tests/models/built.h"
#include "tests/models/named_shapes.h"
#include "tests/support/matchers.h"

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

planner::TransformerConfig tiny_of(planner::Family family, bool tied) {
  planner::TransformerConfig config = tiny_llama(4);
  config.family = family;
  config.tied = tied;
  return config;
}

struct Variant {
  const char* name;
  planner::TransformerConfig config;
  void (*change)(planner::TransformerConfig* config) = [](planner::TransformerConfig*) {};
};
const Variant kVariants[] = {
    {"gpt2", tiny_of(planner::Family::kGpt2, true)},
    {"opt", tiny_of(planner::Family::kOpt, true)},
    {"opt, untied", tiny_of(planner::Family::kOpt, false)},
    {"llama", tiny_llama(4)},
    {"llama of grouped queries", tiny_llama(2)},
    {"mistral nemo", tiny_llama(2),
     [](planner::TransformerConfig* config) { config->head_width = 12; }},
    {"qwen2", tiny_llama(2), [](planner::TransformerConfig* config) { config->qkv_bias = true; }},
    {"qwen3", tiny_llama(2),
     [](planner::TransformerConfig* config) {
       config->head_width = 16;
       config->qk_norm = true;
     }},
    {"gemma2", tiny_llama(2),
     [](planner::TransformerConfig* config) {
       config->head_width = 16;
       config->four_norms = config->gelu = config->tied = true;
       config->final_softcap = 0.1;  // as large as logits at the start
     }},
    {"gemma3", tiny_llama(2),
     [](planner::TransformerConfig* config) {
       config->head_width = 16;
       config->four_norms = config->gelu = config->tied = config->qk_norm = true;
     }},
    {"phi3", tiny_llama(2),
     [](planner::TransformerConfig* config) { config->fused_projections = true; }},
    {"mixtral", tiny_llama(2),
     [](planner::TransformerConfig* config) {
       config->experts = 4;
       config->experts_per_token = 2;
     }},
};

TEST(Decoders, HaveHuggingFacesParametersUseThemAllAndSeeNoLaterToken) {
  for (const Variant& variant : kVariants) {
    SCOPED_TRACE(variant.name);
    planner::TransformerConfig config = variant.config;
    variant.change(&config);
    const std::shared_ptr<Decoder> model = built(config, {.checkpoint_activations = true});
    expect_named_shapes(*model, config);
    const at::Tensor tokens = at::randint(50, {4, 16}, at::kLong);
    const at::Tensor targets = tokens.roll(1, 1), loss = model->loss(tokens, targets);
    EXPECT_NEAR(loss.item<double>(), std::log(50.0), 0.3);
    const at::Tensor logits = model->forward(tokens).view({-1, 50});
    const at::Tensor whole = at::cross_entropy_loss(logits, targets.view({-1}));
    EXPECT_NEAR(loss.item<double>(), whole.item<double>(), 1e-5);
    loss.backward();
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

TEST(Decoders, RefuseSizesThatAFamilyCannotHaveAndLongerSequencesThanTheirPositions) {
  for (const planner::Family family : {planner::Family::kGpt2, planner::Family::kOpt}) {
    const std::shared_ptr<Decoder> model = built(tiny_of(family, true));
    EXPECT_NO_THROW(model->forward(at::randint(50, {1, 16}, at::kLong)));
    try {
      model->forward(at::randint(50, {1, 17}, at::kLong));
      ADD_FAILURE() << "accepted";
    } catch (const c10::Error& failure) {
      EXPECT_THAT(failure.what(), HasSubstr("at most 16"));
    }
  }
  planner::TransformerConfig odd = tiny_of(planner::Family::kOpt, true);
  odd.heads = 5;
  EXPECT_EQ(build_decoder(odd, {}).status().code(), Code::kBadInput);
  EXPECT_THAT(build_decoder(tiny_of(planner::Family::kGpt2, false), {}).status().message(),
              HasSubstr("output projection of its own"));
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
