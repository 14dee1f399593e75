#pragma once

// Rotary positions in a config.json: 'rope_theta' and 'rope_scaling' as transformers 4 writes them,
// 'rope_parameters' as transformers 5 does.

#include <nlohmann/json.hpp>

#include "planner/models/config_fields.h"
#include "planner/models/transformer_config.h"

namespace elixir::planner {

// Reads config.rotary. With kDynamic, config.context becomes `factor` times as long. Fails for a
// kind that models/ does not compute, and if two fields disagree. REQUIRES: config.context and
// config.rotary.base have the values of a file without these fields.
void read_rotary(ConfigFields& fields, TransformerConfig& config);

// Like read_rotary(), for Gemma 3. It has one Rotary for layers that see all tokens, and one for
// layers with a window.
void read_layered_rotary(ConfigFields& fields, TransformerConfig& config);

// Writes the fields of both versions of transformers. Each version ignores those of the other.
void write_rotary(const TransformerConfig& config, nlohmann::ordered_json& json);

}  // namespace elixir::planner
