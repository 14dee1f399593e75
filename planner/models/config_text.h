#pragma once

// Parses an untrusted config.json.

#include <nlohmann/json.hpp>
#include <string_view>

#include "base/status.h"
#include "checkpoint/json_values.h"
#include "planner/models/config_json.h"

namespace elixir::planner {

// Why `text` is no JSON, and at which place. REQUIRES: it is none.
Status fault_of_config(std::string_view text);

// Returns kBadInput if the text is longer than kMaxConfigBytes, nested deeper than any model's, or
// no JSON object.
template <typename Json = nlohmann::json>
Result<Json> parse_config(std::string_view text) {
  constexpr checkpoints::JsonLimits kLimits = {.depth = 32};
  if (text.size() > kMaxConfigBytes) {
    return error(Code::kBadInput, "config.json: {} bytes; {} are the most", text.size(),
                 kMaxConfigBytes);
  }
  const Status within = checkpoints::check_json_limits(text, kLimits);
  if (!within.ok()) return error(Code::kBadInput, "config.json: {}", within.message());
  Result<Json> json = checkpoints::parse_json<Json>(text, kLimits);
  if (json.ok() && json->is_object()) return json;
  if (!json.ok()) return fault_of_config(text);
  return error(Code::kBadInput,
               "config.json: not a JSON object; it must be the config.json of a Hugging Face "
               "model");
}

}  // namespace elixir::planner
