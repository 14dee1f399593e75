#pragma once

// Writes a Hugging Face config.json, and checks one against what models/ computes.
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

// The file that a user names: `path`, or config.json in it if it is a folder.
std::string config_path(const std::string& path);

// The text of config_path(path). Returns kBadInput, with the path, if it is no ordinary file of at
// most kMaxConfigBytes or cannot be read.
Result<std::string> read_config_file(const std::string& path);

// The config.json of `config`. It says all that models/ computes with, so transformers'
// from_pretrained() builds the same function. transformer_from_config_json() gives `config` again,
// except for its learning rate.
std::string config_json(const TransformerConfig& config, ComputeType type);

// `text` with `type` in place of its own. Its other fields stay. Returns kBadInput if it is no JSON
// object.
Result<std::string> config_json_of_type(std::string_view text, ComputeType type);

// The type in which the weights are stored, according to the file (dtype, else torch_dtype). Empty
// if it says nothing, or a type in which Elixir does not compute.
std::optional<ComputeType> type_in_config_json(std::string_view text);
// Like type_in_config_json(), but FP32 if that is empty.
ComputeType type_of_config_json(std::string_view text);

// Checks whether Elixir can use the weights beside a config.json. Either config_json() wrote the
// file, or transformer_from_config_json() accepts it and its model type was compared with
// transformers. Otherwise returns kBadInput.
Status check_computed(std::string_view text);

// One line for the user about a file's fields that are not used (unused_config_fields), with at
// most 20 names. "" if there are none.
std::string unused_fields_line(const std::string& path, std::string_view text);

}  // namespace elixir::planner
