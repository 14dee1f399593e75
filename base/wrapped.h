#pragma once

#include <cstddef>
#include <string>

namespace elixir {

// Columns of the screens that programs write.
inline constexpr size_t kScreenColumns = 80;

// The place of text on a screen. Columns count from 0.
struct Wrap {
  size_t columns = kScreenColumns;  // no line is longer, unless a single word is
  size_t indent = 0;                // spaces before every line but the first
  size_t begin = 0;                 // the column in which the first line begins
};

// Breaks `text` into lines at spaces. Its own line breaks stay. A line that begins with a space is
// an example and stays as it is.
std::string wrapped(const std::string& text, const Wrap& wrap);

// One or several lines, each with its end. `label` stands in the left column of `width` columns.
// `text` stands to the right of it or, if the label is too long, below it.
std::string labelled(const std::string& label, const std::string& text, size_t width);

}  // namespace elixir
