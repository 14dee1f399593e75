#pragma once

#include <regex>
#include <string>

namespace elixir {

// Text of several lines as one: a test that looks for words does not depend on where lines break.
inline std::string unwrapped(const std::string& text) {
  return std::regex_replace(text, std::regex("\\s*\n\\s*"), " ");
}

}  // namespace elixir
