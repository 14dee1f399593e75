#pragma once

// A Hugging Face config.json, written and held against what models/ computes.
// transformer_from_config_json() reads one.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/compute_type.h"
#include "base/status.h"
#include "planner/models/transformer_config.h"

namespace elixir::planner {

inline constexpr uint64_t kMaxConfigBytes = uint64_t{1} << 20;

// kBadInput, with the path: no ordinary file of at most kMaxConfigBytes, or it cannot be read.
Result<std::string> read_config_file(const std::string& path);

// Says all that models/ computes with, so that transformers' from_pretrained() builds the same
// function. transformer_from_config_json() gives `config` again, but for its learning rate and its
// window, which models/ does not have.
std::string config_json(const TransformerConfig& config, ComputeType type);

// `text` with `type` in the place of its own; its other fields stay. kBadInput: no JSON object.
Result<std::string> config_json_of_type(std::string_view text, ComputeType type);

// What a file says that weights are stored in (dtype, else torch_dtype). Empty: nothing, or a type
// in which Elixir does not compute.
std::optional<ComputeType> type_in_config_json(std::string_view text);
// The same, and FP32 if it is empty.
ComputeType type_of_config_json(std::string_view text);

// That models/ computes what a file of somebody's asks for, with the values of its weights.
// kBadInput with the field that asks for something else: another activation, positions that are
// rescaled, heads that see other scales, a type that nobody has compared with its original (but in
// a file that config_json() wrote).
Status check_computed(std::string_view text);
// But for the type: what is wrong with training a model of its sizes from drawn weights.
Status check_fields_computed(std::string_view text);

}  // namespace elixir::planner
