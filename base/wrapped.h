#pragma once

#include <cstddef>
#include <string>

namespace elixir {

// Columns of the screens that programs write.
inline constexpr size_t kScreenColumns = 80;

// Where text is put on a screen. Columns count from 0.
struct Wrap {
  size_t columns = kScreenColumns;  // no line is longer, except for a word that is
  size_t indent = 0;                // spaces before every line but the first
  size_t begin = 0;                 // the column in which the first line begins
};

// `text` in lines that are broken at spaces. Its own line breaks stay. A line that begins with a
// space is an example and stays as it is.
std::string wrapped(const std::string& text, const Wrap& wrap);

// One or several lines, each with its end: `label` in the left column of `width` columns, and
// `text` to the right of it or, if the label is too long, below it.
std::string labelled(const std::string& label, const std::string& text, size_t width);

}  // namespace elixir
