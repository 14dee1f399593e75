#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace elixir {

// `text` in lines of at most `columns` columns, broken at spaces. Every line but the first begins
// with `indent` spaces, and the first one begins in column `column`. A line that begins with a
// space keeps its own break: it is an example.
std::string wrapped(const std::string& text, size_t columns, size_t indent, size_t column);

// The layout of --help: at most 80 columns; options with their default in words behind the
// description. Options that have a group of their own are listed under its name.
class HelpFormatter : public CLI::Formatter {
 public:
  static constexpr size_t kColumns = 80, kIndent = 26;

  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  std::string make_subcommand(const CLI::App* sub) const override;
  std::string make_description(const CLI::App* app) const override;
};

}  // namespace elixir
