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

// The file that a user names: `path`, or config.json in it if it is a folder.
std::string config_path(const std::string& path);

// The text of config_path(path). kBadInput, with the path: no ordinary file of at most
// kMaxConfigBytes, or it cannot be read.
Result<std::string> read_config_file(const std::string& path);

// Says all that models/ computes with, so that transformers' from_pretrained() builds the same
// function. transformer_from_config_json() gives `config` again, except for its learning rate.
std::string config_json(const TransformerConfig& config, ComputeType type);

// `text` with `type` in the place of its own; its other fields stay. kBadInput: no JSON object.
Result<std::string> config_json_of_type(std::string_view text, ComputeType type);

// What a file says that weights are stored in (dtype, else torch_dtype). Empty: nothing, or a type
// in which Elixir does not compute.
std::optional<ComputeType> type_in_config_json(std::string_view text);
// The same, and FP32 if it is empty.
ComputeType type_of_config_json(std::string_view text);

// Whether weights beside a file of somebody's can be taken: transformer_from_config_json() accepts
// it, and the type was compared with transformers, or config_json() wrote the file. kBadInput.
Status check_computed(std::string_view text);

// One line for the user, of the fields of a file that are not used (unused_config_fields); "" if
// there are none. At most 20 names.
std::string unused_fields_line(const std::string& path, std::string_view text);

}  // namespace elixir::planner
