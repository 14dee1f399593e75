#pragma once

// Rotary positions in a config.json: 'rope_theta' and 'rope_scaling' as transformers 4 writes them,
// 'rope_parameters' as transformers 5 does.

#include <nlohmann/json.hpp>

#include "planner/models/config_fields.h"
#include "planner/models/transformer_config.h"

namespace elixir::planner {

// Into config.rotary, whose base and config.context are set: what a file that says nothing means.
// With kDynamic config.context becomes `factor` times as long. An error for what models/ does not
// compute, and where two fields disagree.
void read_rotary(ConfigFields& fields, TransformerConfig& config);

// The same of Gemma 3, which has a Rotary for layers that see all, and one for those with a window.
void read_layered_rotary(ConfigFields& fields, TransformerConfig& config);

// The fields of both versions of transformers, each of which ignores the other's.
void write_rotary(const TransformerConfig& config, nlohmann::ordered_json& json);

}  // namespace elixir::planner
