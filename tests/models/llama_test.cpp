#include <ATen/Functions.h>
#include <fmt/format.h>

#include <cmath>
#include <string>

#include "client/tensors/interception.h"
#include "models/decoder.h"
#include "models/decoder_parts.h"
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
    {"llama with biases", tiny_llama(2),
     [](planner::TransformerConfig* config) {
       config->qkv_bias = config->o_bias = config->mlp_bias = true;
     }},
    {"llama of 3.1", tiny_llama(2),
     [](planner::TransformerConfig* config) {
       config->rotary = {.kind = planner::RotaryKind::kLlama3,
                         .factor = 8,
                         .original_context = 8,
                         .low_freq_factor = 1,
                         .high_freq_factor = 4};
     }},
    {"mistral with a window", tiny_llama(2),
     [](planner::TransformerConfig* config) { config->window = 12; }},
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
       config->four_norms = config->gemma = config->gelu = config->tied = true;
       config->final_softcap = 0.1;  // as large as logits at the start
       config->attention_softcap = 50;
       config->query_scalar = 24;
       config->window = 12;
       config->windowed = {true, false};
     }},
    {"gemma3", tiny_llama(2),
     [](planner::TransformerConfig* config) {
       config->head_width = 16;
       config->four_norms = config->gemma = config->gelu = config->tied = config->qk_norm = true;
       config->window = 12;
       config->windowed = {true, false};
       config->window_rotary = planner::Rotary{.base = 50};
     }},
    {"gemma", tiny_llama(1),
     [](planner::TransformerConfig* config) {
       config->head_width = 16;
       config->gemma = config->gelu = config->tied = true;
     }},
    {"olmo2", tiny_llama(2),
     [](planner::TransformerConfig* config) {
       config->norms_behind = config->qk_norm = config->whole_qk_norm = true;
     }},
    {"smollm3", tiny_llama(2),
     [](planner::TransformerConfig* config) {
       config->rotated = {true, false};
     }},
    {"granite", tiny_llama(2),
     [](planner::TransformerConfig* config) {
       config->embedding_scale = 12;
       config->attention_scale = 0.1;
       config->residual_scale = 0.22;
       config->logits_divisor = 8;
     }},
    {"gpt_neox", tiny_of(planner::Family::kNeoX, false),
     [](planner::TransformerConfig* config) {
       config->qkv_bias = true;
       config->rotary.share = 0.25;
     }},
    {"gpt_neox, tied", tiny_of(planner::Family::kNeoX, true),
     [](planner::TransformerConfig* config) { config->parallel = false; }},
    {"phi", tiny_of(planner::Family::kPhi, false),
     [](planner::TransformerConfig* config) {
       config->qkv_bias = true;
       config->rotary.share = 0.5;
     }},
    {"phi, tied", tiny_of(planner::Family::kPhi, true),
     [](planner::TransformerConfig* config) { config->qkv_bias = true; }},
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

std::vector<at::Tensor> gradients_of_step(Decoder& model, const at::Tensor& tokens) {
  at::manual_seed(5);
  model.loss(tokens, tokens.roll(1, 1)).backward();
  std::vector<at::Tensor> result;
  for (at::Tensor& parameter : model.parameters()) {
    result.push_back(parameter.grad());
    parameter.mutable_grad().reset();
  }
  return result;
}

// The first step of regions finds what the second one leaves out in backward.
TEST(Decoders, HaveTheSameGradientsWithRegionsThatEndEarly) {
  keep_interception();
  const at::Tensor tokens = at::randint(50, {2, 16}, at::kLong);
  for (const Variant& variant : kVariants) {
    planner::TransformerConfig config = variant.config;
    variant.change(&config);
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const double dropout : {0.0, 0.25}) {
        SCOPED_TRACE(fmt::format("{}, {}, dropout {}", variant.name, at::toString(dtype), dropout));
        DecoderOptions options{.dropout = dropout, .dtype = dtype};
        const auto plain = gradients_of_step(*built(config, options), tokens);
        options.checkpoint_activations = true;
        const std::shared_ptr<Decoder> model = built(config, options);
        for (int step = 0; step < 2; ++step) {
          const auto gradients = gradients_of_step(*model, tokens);
          for (size_t i = 0; i < plain.size(); ++i) {
            EXPECT_TRUE(at::equal(gradients[i], plain[i])) << i << " in step " << step;
          }
        }
      }
    }
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

// A token of two layers with a window of 3 sees the 4 tokens before it; with one layer that sees
// all, every one. Caps and scores of another scale change nothing in that.
TEST(Llama, ATokenSeesItsWindow) {
  struct Case {
    std::vector<bool> windowed;
    double softcap;
    int64_t seen;
  };
  for (const Case& one :
       {Case{{}, 0, 4}, Case{{true, false}, 0, 15}, Case{{}, 50, 4}, Case{{false, true}, 50, 15}}) {
    planner::TransformerConfig config = tiny_llama(2);
    config.init_deviation = 0.5;  // far tokens matter
    config.window = 3;
    config.windowed = one.windowed;
    config.attention_softcap = one.softcap;
    const std::shared_ptr<Decoder> model = built(config);
    const at::Tensor tokens = at::randint(50, {1, 16}, at::kLong);
    const at::Tensor last = model->forward(tokens).select(1, 15);
    for (int64_t before = 1; before < 16; ++before) {
      at::Tensor changed = tokens.clone();
      changed.select(1, 15 - before).copy_((tokens.select(1, 15 - before) + 1).remainder(50));
      const bool same = model->forward(changed).select(1, 15).equal(last);
      EXPECT_EQ(same, before > one.seen) << before << " before, cap " << one.softcap;
    }
  }
}

// By the formula, beside the kernel that computes the scores without a cap.
TEST(Llama, ScoresAreScaledAndCapped) {
  const at::NoGradGuard no_grad;
  const at::Tensor queries = at::randn({2, 4, 6, 8}) * 3, keys = at::randn({2, 2, 6, 8}) * 3;
  const at::Tensor values = at::randn({2, 2, 6, 8});
  const at::Tensor mask = at::full({6, 6}, -INFINITY).triu(1);
  const at::Tensor scores = at::matmul(queries, keys.repeat_interleave(2, 1).transpose(2, 3)) / 5;
  for (const double softcap : {0.0, 0.5}) {
    const at::Tensor capped = softcap > 0 ? at::tanh(scores / softcap) * softcap : scores;
    const at::Tensor expected =
        at::matmul(at::softmax(capped + mask, -1), values.repeat_interleave(2, 1))
            .transpose(1, 2)
            .reshape({2, 6, 32});
    const at::Tensor ours =
        causal_attention(queries, keys, values, {.scale = 0.2, .mask = mask, .softcap = softcap});
    EXPECT_LT((ours - expected).abs().max().item<double>(), 1e-5) << softcap;
    if (softcap > 0) continue;
    const at::Tensor unmasked = causal_attention(queries, keys, values, {.scale = 0.2});
    EXPECT_LT((unmasked - expected).abs().max().item<double>(), 1e-5);
  }
}

TEST(Decoders, AreDrawnWithTheDeviationOfTheFile) {
  for (const planner::Family family :
       {planner::Family::kGpt2, planner::Family::kOpt, planner::Family::kLlama}) {
    planner::TransformerConfig config = tiny_of(family, true);
    config.width = 128;
    config.init_deviation = 0.3;
    for (const auto& parameter : built(config)->named_parameters()) {
      if (parameter.value().dim() < 2) continue;
      const bool to_residual =
          family == planner::Family::kGpt2 && parameter.key().ends_with("c_proj.weight");
      const double expected = to_residual ? 0.3 / std::sqrt(2.0 * 2) : 0.3;
      const double deviation = parameter.value().std().item<double>();
      EXPECT_NEAR(deviation, expected, 0.1 * expected) << parameter.key();
    }
  }
}

// Gemma's norms count from 1.
TEST(Decoders, NormsBeginAsOnes) {
  planner::TransformerConfig config = tiny_llama(4);
  for (const bool gemma : {false, true}) {
    config.gemma = gemma;
    for (const auto& parameter : built(config)->named_parameters()) {
      if (parameter.value().dim() != 1) continue;
      EXPECT_TRUE((parameter.value() == (gemma ? 0 : 1)).all().item<bool>()) << parameter.key();
    }
  }
}

TEST(Decoders, ThePaddingTokensRowGetsNoGradientFromLookups) {
  for (const planner::Family family : {planner::Family::kOpt, planner::Family::kLlama}) {
    for (const int64_t padding : {-1, 7}) {
      planner::TransformerConfig config = tiny_of(family, false);
      config.padding_token = padding;
      const std::shared_ptr<Decoder> model = built(config);
      const at::Tensor tokens = at::full({1, 16}, 7, at::kLong);
      model->loss(tokens, tokens).backward();
      for (const auto& parameter : model->named_parameters()) {
        if (!parameter.key().ends_with("embed_tokens.weight")) continue;
        const double most = parameter.value().grad().abs().max().item<double>();
        EXPECT_EQ(most == 0, padding == 7) << parameter.key();
      }
    }
  }
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
