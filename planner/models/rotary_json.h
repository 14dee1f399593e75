#pragma once

// Rotary positions in a config.json: 'rope_theta' and 'rope_scaling' as transformers 4 writes them,
// 'rope_parameters' as transformers 5 does.

#include <nlohmann/json.hpp>

#include "planner/models/config_fields.h"
#include "planner/models/transformer_config.h"

namespace elixir::planner {

// How a type calls the base and the share, outside of descriptions.
struct RotaryNames {
  const char* base = "rope_theta";
  const char* share = "partial_rotary_factor";
};

inline constexpr RotaryNames kNeoXRotary = {.base = "rotary_emb_base", .share = "rotary_pct"};

// Reads config.rotary. With kDynamic, config.context becomes `factor` times as long. Fails for a
// kind that models/ does not compute, and if two fields disagree. REQUIRES: config.context,
// config.rotary.base and config.rotary.share have the values of a file without these fields. A
// share of 1 is the only one that such a type knows.
void read_rotary(ConfigFields& fields, TransformerConfig& config, const RotaryNames& names = {});

// Like read_rotary(), for Gemma 3. It has one Rotary for layers that see all tokens, and one for
// layers with a window.
void read_layered_rotary(ConfigFields& fields, TransformerConfig& config);

// Writes the fields of both versions of transformers. Each version ignores those of the other.
void write_rotary(const TransformerConfig& config, nlohmann::ordered_json& json,
                  const RotaryNames& names = {});

}  // namespace elixir::planner
