#include "checkpoint/json_values.h"

namespace elixir::checkpoints {

using nlohmann::json;

Result<json> parse_json(std::string_view text, const JsonLimits& limits) {
  size_t values = 0;
  bool beyond = false;
  // What is beyond a limit is dropped as it comes, so that it takes no memory; then all is refused.
  const auto keep = [&](int depth, json::parse_event_t event, const json&) {
    const bool ends =
        event == json::parse_event_t::array_end || event == json::parse_event_t::object_end;
    if (!ends) beyond = beyond || depth > limits.depth || ++values > limits.values;
    return !beyond;
  };
  json value = json::parse(text, keep, false);
  if (beyond) {
    return error(Code::kBadInput, "JSON of more than {} values, or deeper than {}", limits.values,
                 limits.depth);
  }
  if (value.is_discarded()) return error(Code::kBadInput, "not JSON");
  return value;
}

}  // namespace elixir::checkpoints
