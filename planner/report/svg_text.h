#pragma once

#include <string>

namespace elixir::planner {

// Escapes text that stands between two tags of an SVG. A control character becomes a space.
inline std::string svg_text(const std::string& words) {
  std::string text;
  for (const char letter : words) {
    switch (letter) {
      case '&':
        text += "&amp;";
        break;
      case '<':
        text += "&lt;";
        break;
      case '>':
        text += "&gt;";
        break;
      default:
        text += static_cast<unsigned char>(letter) < ' ' ? ' ' : letter;
    }
  }
  return text;
}

}  // namespace elixir::planner
