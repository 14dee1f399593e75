#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace elixir {

// The layout of --help, at most 80 columns wide. The default of an option stands in words behind
// its description. Options that have a group of their own are listed under its name.
class HelpFormatter : public CLI::Formatter {
 public:
  static constexpr size_t kIndent = 26;

  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  std::string make_subcommand(const CLI::App* sub) const override;
  std::string make_description(const CLI::App* app) const override;
  std::string make_footer(const CLI::App* app) const override;
};

}  // namespace elixir
