#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace elixir::planner {

// A value of somebody's file, for a message: short, and without descending into what may be nested
// as deeply as the file is long.
inline std::string shown(const nlohmann::json& value) {
  constexpr size_t kLongest = 40;
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  const std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return text.size() <= kLongest ? text : text.substr(0, kLongest) + "...";
}

}  // namespace elixir::planner
