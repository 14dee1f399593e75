#pragma once

#include "planner/models/transformer_config.h"

namespace elixir {

struct TinySizes {
  int64_t vocabulary = 50, width = 32, layers = 2, heads = 4;
};

// A GPT-2 so small that its step takes a millisecond, with at most 16 tokens per sequence.
inline planner::TransformerConfig tiny_gpt2_config(const TinySizes& size = {}) {
  return {.name = "tiny",
          .family = planner::Family::kGpt2,
          .vocabulary = size.vocabulary,
          .context = 16,
          .width = size.width,
          .layers = size.layers,
          .heads = size.heads,
          .kv_heads = size.heads,
          .mlp_width = 4 * size.width,
          .tied = true};
}

}  // namespace elixir
