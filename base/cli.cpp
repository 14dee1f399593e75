#include "base/cli.h"

#include <iostream>
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

std::vector<std::string> unknown_arguments(const CLI::App& app) { return app.remaining(true); }

}  // namespace

std::string explain_unknown(const CLI::App& app, const std::string& given) {
  const std::string flag = given.substr(0, given.find('='));
  std::string text = "unknown flag or argument '" + flag + "'";
  const std::string nearest = nearest_name(flag, known_flags(app));
  if (!nearest.empty()) text += "; did you mean '" + nearest + "'?";
  return text + " (" + app.get_name() + " --help lists all)";
}

void init_cli(CLI::App& app) {
  app.set_version_flag("--version", std::string("elixir ") + kVersion);
  app.option_defaults()->always_capture_default();
}

int parse_cli(CLI::App& app, int argc, const char* const* argv) {
  try {
    app.parse(argc, argv);
    return -1;
  } catch (const CLI::ExtrasError&) {
    const std::vector<std::string> unknown = unknown_arguments(app);
    const std::string given = unknown.empty() ? "" : unknown.front();
    std::cerr << app.get_name() << ": " << explain_unknown(app, given) << "\n";
    return static_cast<int>(Code::kInvalidArgument);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& failure) {
    std::cerr << app.get_name() << ": " << failure.what() << " (" << app.get_name()
              << " --help lists all flags)\n";
    return static_cast<int>(Code::kInvalidArgument);
  }
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

}  // namespace elixir
