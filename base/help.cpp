#include "base/help.h"

#include "base/wrapped.h"

namespace elixir {
namespace {

// "FILE ..." for values that can be repeated.
std::string values_of(const CLI::Option& option) {
  if (option.get_type_size() == 0) return "";
  // CLI11 puts what a check allows behind a colon.
  const std::string type = option.get_type_name().substr(0, option.get_type_name().find(':'));
  std::string text = type.empty() ? "" : " " + type;
  if (option.get_expected_max() == CLI::detail::expected_max_vector_size) text += " ...";
  if (option.get_required()) text += " (required)";
  return text;
}

}  // namespace

std::string HelpFormatter::make_option(const CLI::Option* option, bool is_positional) const {
  std::string meaning = make_option_desc(option);
  const std::string value = option->get_default_str();
  const bool says_it = meaning.find("default") != meaning.npos;
  if (option->get_type_size() != 0 && !value.empty() && value != "[]" && !says_it) {
    meaning += " (default: " + value + ")";
  }
  const std::string name =
      CLI::detail::find_and_replace(make_option_name(option, is_positional), "{false}", "");
  return labelled("  " + name + values_of(*option), meaning, kIndent);
}

std::string HelpFormatter::make_subcommand(const CLI::App* sub) const {
  return labelled("  " + sub->get_display_name(true), sub->get_description(), kIndent);
}

std::string HelpFormatter::make_description(const CLI::App* app) const {
  const std::string text = app->get_description();
  return text.empty() ? "" : wrapped(text, {}) + "\n";
}

std::string HelpFormatter::make_footer(const CLI::App* app) const {
  const std::string text = app->get_footer();
  return text.empty() ? "" : wrapped(text, {}) + "\n";
}

}  // namespace elixir
