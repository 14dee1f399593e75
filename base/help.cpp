#include "base/help.h"

#include <sstream>
#include <vector>

namespace elixir {
namespace {

// A name in the left column, and what it means to the right of it or, if it is long, below it.
std::string entry(const std::string& name, const std::string& meaning) {
  constexpr size_t kIndent = HelpFormatter::kIndent, kColumns = HelpFormatter::kColumns;
  std::string text = "  " + name;
  if (text.size() + 2 > kIndent) text += "\n";
  const size_t begin = text.rfind('\n') == text.npos ? 0 : text.rfind('\n') + 1;
  text.append(kIndent - (text.size() - begin), ' ');
  return text + wrapped(meaning, kColumns, kIndent, kIndent) + "\n";
}

// "FILE ..." for values that can be repeated.
std::string values_of(const CLI::Option& option) {
  if (option.get_type_size() == 0) return "";
  std::string text = option.get_type_name().empty() ? "" : " " + option.get_type_name();
  if (option.get_expected_max() == CLI::detail::expected_max_vector_size) text += " ...";
  if (option.get_required()) text += " (required)";
  return text;
}

}  // namespace

std::string wrapped(const std::string& text, size_t columns, size_t indent, size_t column) {
  std::string lines;
  std::istringstream paragraphs(text);
  bool first = true;
  for (std::string line; std::getline(paragraphs, line);) {
    if (!first) {
      lines += "\n" + std::string(indent, ' ');
      column = indent;
    }
    first = false;
    if (line.starts_with(' ')) {
      lines += line;
      continue;
    }
    std::istringstream words(line);
    bool begins = true;
    for (std::string word; words >> word; begins = false) {
      if (!begins && column + 1 + word.size() > columns) {
        lines += "\n" + std::string(indent, ' ');
        column = indent;
        begins = true;
      }
      lines += (begins ? "" : " ") + word;
      column += word.size() + (begins ? 0 : 1);
    }
  }
  return lines;
}

std::string HelpFormatter::make_option(const CLI::Option* option, bool is_positional) const {
  std::string meaning = make_option_desc(option);
  const std::string value = option->get_default_str();
  const bool says_it = meaning.find("default") != meaning.npos;
  if (option->get_type_size() != 0 && !value.empty() && !says_it) {
    meaning += " (default: " + value + ")";
  }
  return entry(make_option_name(option, is_positional) + values_of(*option), meaning);
}

std::string HelpFormatter::make_subcommand(const CLI::App* sub) const {
  return entry(sub->get_display_name(true), sub->get_description());
}

std::string HelpFormatter::make_description(const CLI::App* app) const {
  const std::string text = app->get_description();
  return text.empty() ? "" : wrapped(text, kColumns, 0, 0) + "\n";
}

}  // namespace elixir
