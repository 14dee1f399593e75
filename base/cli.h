#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/enum_names.h"
#include "base/problems.h"
#include "base/status.h"

namespace elixir {

// Gives `app` the common parts of Elixir's programs: --version, one-line errors with the nearest
// known flag, and help that shows defaults. Call it before you add options.
void init_cli(CLI::App& app);

// The faults of a command line.
struct WrongWords {
  Problems problems;
  std::set<std::string> flags;  // with a wrong value; for an unknown flag: the nearest one, or ""
};

// Parses the command line. Prints help, the version or all faults. Returns -1 if the program should
// continue, else the exit code: 0 after --help and --version, 2 for a bad command line.
int parse_cli(CLI::App& app, int argc, const char* const* argv);
// Prints no faults but adds them to `wrong`, because the caller may find more. Returns -1, except
// after --help and --version without faults. `words`: the command line without the program.
// Afterwards the flags with a wrong value are removed from it. A wrong value may have been stored.
// So to continue, parse the remaining words with another App and other variables.
int parse_cli(CLI::App& app, std::vector<std::string>& words, WrongWords& wrong);

// A message for the user: the flag does not exist, and which existing flag is nearest.
std::string explain_unknown(const CLI::App& app, const std::string& given);

// An option that takes one of `names`.
template <typename Value, size_t n>
CLI::Option* add_choice(CLI::App& app, const std::string& flag, Value& value,
                        const EnumName<Value> (&names)[n], const std::string& help) {
  return app
      .add_option_function<std::string>(
          flag,
          [&value, &names, flag](const std::string& text) {
            const Result<Value> named = parse_name(names, text);
            if (!named.ok()) throw CLI::ValidationError(flag, named.status().message());
            value = *named;
          },
          help)
      ->default_str(name_in(names, value));
}

// An option that takes one of `names`, or "auto", which leaves the value empty.
template <typename Value, size_t n>
CLI::Option* add_choice(CLI::App& app, const std::string& flag, std::optional<Value>& value,
                        const EnumName<Value> (&names)[n], const std::string& help) {
  return app
      .add_option_function<std::string>(
          flag,
          [&value, &names, flag](const std::string& text) {
            value.reset();
            if (text == "auto") return;
            const Result<Value> named = parse_name(names, text);
            if (!named.ok())
              throw CLI::ValidationError(flag, unknown_name(text, "auto, " + list_names(names)));
            value = *named;
          },
          help)
      ->default_str("auto");
}

// A whole number of 0 or more. (CLI11 would wrap a negative one around.)
template <typename Number>
CLI::Option* add_count(CLI::App& app, const std::string& flag, Number& value,
                       const std::string& help) {
  return app.add_option(flag, value, help)->check([](const std::string& text) {
    return std::string(text.starts_with('-') ? "must be 0 or greater" : "");
  });
}

// A whole number of 0 or more, or "auto", which leaves the value empty.
template <typename Number>
CLI::Option* add_count(CLI::App& app, const std::string& flag, std::optional<Number>& value,
                       const std::string& help) {
  return app
      .add_option_function<std::string>(
          flag,
          [&value, flag](const std::string& text) {
            value.reset();
            if (text == "auto") return;
            Number number = 0;
            if (text.starts_with('-') || !CLI::detail::lexical_cast(text, number)) {
              throw CLI::ValidationError(flag, "must be auto, or 0 or greater");
            }
            value = number;
          },
          help)
      ->default_str("auto");
}

// An option that `parse`, a function from a text to a Result, reads. Empty: it is not given.
template <typename Value, typename Parse>
CLI::Option* add_parsed(CLI::App& app, const std::string& flag, std::optional<Value>& value,
                        const Parse& parse, const std::string& help) {
  return app.add_option_function<std::string>(
      flag,
      [&value, parse, flag](const std::string& text) {
        const Result<Value> parsed = parse(text);
        if (!parsed.ok()) throw CLI::ValidationError(flag, parsed.status().message());
        value = *parsed;
      },
      help);
}

// Two flags, "--name,!--no-name", that stand for values of another option. Only one may be given.
template <typename Value>
CLI::Option* add_short_flags(CLI::App& app, const std::string& flags, CLI::Option* of,
                             std::optional<Value>& value, const Value& yes, const Value& no,
                             const std::string& help) {
  return app
      .add_flag_function(
          flags, [&value, yes, no](int64_t count) { value = count > 0 ? yes : no; }, help)
      ->excludes(of);
}

// A size of memory such as 40GiB; rejects 0.
CLI::Option* add_bytes(CLI::App& app, const std::string& flag, std::optional<uint64_t>& bytes,
                       const std::string& help);

// The name of a flag in an earlier release. It works for one more release, and --help hides it.
template <typename Value>
CLI::Option* add_old_name(CLI::App& app, const std::string& old_flag, Value& value) {
  return app.add_option(old_flag, value)->group("");
}

// Prints "NAME: message" to standard error; returns the status's exit code.
int report_failure(const CLI::App& app, const Status& status);
// Prints a line for each problem; returns the first one's exit code. REQUIRES: there is a problem.
int report_failures(const CLI::App& app, const Problems& problems);

}  // namespace elixir
