#pragma once

#include <regex>
#include <string>

namespace elixir {

// Joins the lines of a text. So a test that looks for words does not depend on line breaks.
inline std::string unwrapped(const std::string& text) {
  return std::regex_replace(text, std::regex("\\s*\n\\s*"), " ");
}

}  // namespace elixir
