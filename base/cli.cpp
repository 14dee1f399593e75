#include "base/cli.h"

#include <algorithm>
#include <cctype>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "base/nearest.h"
#include "base/printable.h"
#include "base/units.h"
#include "base/version.h"

namespace elixir {
namespace {

std::vector<std::string> known_flags(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options({})) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (const CLI::App* sub : app.get_subcommands({})) {
    names.push_back(sub->get_name());
    if (sub->parsed()) {
      for (const std::string& name : known_flags(*sub)) names.push_back(name);
    }
  }
  return names;
}

std::string flag_of(const std::string& word) { return word.substr(0, word.find('=')); }

// Each unknown flag, and each word that is not a value of one.
void add_unknown(const CLI::App& app, WrongWords& wrong) {
  bool behind_flag = false;
  for (const std::string& word : app.remaining(true)) {
    const bool is_flag = word.starts_with("--");
    if (is_flag || !behind_flag) {
      wrong.flags.insert(nearest_name(flag_of(word), known_flags(app)));
      wrong.problems.add(error(Code::kInvalidArgument, "{}", explain_unknown(app, word)));
    }
    behind_flag = is_flag && word.find('=') == word.npos;
  }
}

// Whether a message names the flag, and not a longer one.
bool names(const std::string& message, const std::string& flag) {
  const size_t at = message.find(flag);
  if (at == message.npos) return false;
  const size_t end = at + flag.size();
  return end == message.size() || (std::isalnum(message[end]) == 0 && message[end] != '-');
}

// The words that one may take behind its flag.
int most_values(const CLI::App& app, const std::string& flag) {
  const CLI::Option* option = app.get_option_no_throw(flag);
  for (const CLI::App* sub : app.get_subcommands()) {
    if (option == nullptr) option = sub->get_option_no_throw(flag);
  }
  return option == nullptr ? 1 : option->get_items_expected_max();
}

// Takes the flag that `message` names out of the words, with its values. False: it names none.
bool take_out(const CLI::App& app, const std::string& message, std::vector<std::string>& words,
              WrongWords& wrong) {
  for (auto word = words.begin(); word != words.end(); ++word) {
    const std::string flag = flag_of(*word);
    if (!flag.starts_with("--") || flag == "--" || !names(message, flag)) continue;
    auto end = std::next(word);
    const int most = word->size() > flag.size() ? 0 : most_values(app, flag);
    for (int i = 0; i < most && end != words.end() && !end->starts_with("--"); ++i) ++end;
    words.erase(word, end);
    wrong.flags.insert(flag);
    return true;
  }
  return false;
}

}  // namespace

std::string explain_unknown(const CLI::App& app, const std::string& given) {
  const std::string flag = flag_of(given);
  std::string text = "unknown flag or argument '" + flag + "'";
  const std::string nearest = nearest_name(flag, known_flags(app));
  if (!nearest.empty()) text += "; did you mean '" + nearest + "'?";
  return text + " (" + app.get_name() + " --help lists all)";
}

void init_cli(CLI::App& app) {
  app.set_version_flag("--version", std::string("elixir ") + kVersion);
  app.option_defaults()->always_capture_default();
}

// CLI11 stops at the first wrong value: then all is parsed again without it.
int parse_cli(CLI::App& app, std::vector<std::string>& words, WrongWords& wrong) {
  while (true) {
    try {
      app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
      return -1;
    } catch (const CLI::ExtrasError&) {
      add_unknown(app, wrong);
      return -1;
    } catch (const CLI::Success& help) {
      if (!wrong.problems.empty()) return -1;
      return app.exit(help);
    } catch (const CLI::ParseError& failure) {
      const std::string message = failure.what();
      wrong.problems.add(
          error(Code::kInvalidArgument, "{} ({} --help lists all flags)", message, app.get_name()));
      if (!take_out(app, message, words, wrong)) return -1;
    }
  }
}

int parse_cli(CLI::App& app, int argc, const char* const* argv) {
  WrongWords wrong;
  std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  const int exit_code = parse_cli(app, words, wrong);
  return wrong.problems.empty() ? exit_code : report_failures(app, wrong.problems);
}

CLI::Option* add_bytes(CLI::App& app, const std::string& flag, std::optional<uint64_t>& bytes,
                       const std::string& help) {
  return app.add_option_function<std::string>(
      flag,
      [&bytes, flag](const std::string& text) {
        const Result<uint64_t> parsed = parse_bytes(text);
        if (!parsed.ok()) throw CLI::ValidationError(flag, parsed.status().message());
        if (*parsed == 0) throw CLI::ValidationError(flag, text + ": there must be some");
        bytes = *parsed;
      },
      help);
}

int report_failure(const CLI::App& app, const Status& status) {
  std::cerr << app.get_name() << ": " << printable(status.message(), /*lines=*/true) << "\n";
  return status.exit_code();
}

int report_failures(const CLI::App& app, const Problems& problems) {
  ELIXIR_CHECK(!problems.empty(), "nothing to report");
  for (const Status& problem : problems.all()) report_failure(app, problem);
  return problems.all().front().exit_code();
}

}  // namespace elixir
