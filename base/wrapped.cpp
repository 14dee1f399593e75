#include "base/wrapped.h"

#include <sstream>

#include "base/check.h"

namespace elixir {

std::string wrapped(const std::string& text, const Wrap& wrap) {
  ELIXIR_CHECK(wrap.indent < wrap.columns, "{} columns, indented by {}", wrap.columns, wrap.indent);
  const std::string next_line = "\n" + std::string(wrap.indent, ' ');
  std::string lines;
  size_t column = wrap.begin;
  bool first = true;
  std::istringstream paragraphs(text);
  for (std::string line; std::getline(paragraphs, line); first = false) {
    if (!first) {
      lines += next_line;
      column = wrap.indent;
    }
    if (line.starts_with(' ')) {
      lines += line;
      continue;
    }
    std::istringstream words(line);
    bool begins = true;
    for (std::string word; words >> word; begins = false) {
      if (!begins && column + 1 + word.size() > wrap.columns) {
        lines += next_line;
        column = wrap.indent;
        begins = true;
      }
      lines += (begins ? "" : " ") + word;
      column += word.size() + (begins ? 0 : 1);
    }
  }
  return lines;
}

std::string labelled(const std::string& label, const std::string& text, size_t width) {
  ELIXIR_CHECK(width < kScreenColumns, "a label of {} columns", width);
  std::string out = label;
  size_t column = label.size();
  if (column + 1 > width) {
    out += "\n";
    column = 0;
  }
  out.append(width - column, ' ');
  return out + wrapped(text, {.indent = width, .begin = width}) + "\n";
}

}  // namespace elixir
