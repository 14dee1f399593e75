#include "base/cli.h"

#include <algorithm>
#include <cctype>
#include <iostream>
#include <iterator>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "base/help.h"
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

// Names of other trainers, without the dashes, and what stands in their place. A program that does
// not have the flag does not name it.
struct OtherName {
  const char *theirs, *ours;
};
constexpr OtherName kOtherNames[] = {
    {"learning-rate", "--lr"},
    {"per-device-train-batch-size", "--batch"},
    {"train-batch-size", "--batch"},
    {"micro-batch-size", "--batch"},
    {"batch-size", "--batch"},
    {"gradient-accumulation-steps", "--accumulate"},
    {"grad-accum", "--accumulate"},
    {"bf16", "--dtype bf16"},
    {"fp16", "--dtype fp16"},
    {"fp32", "--dtype fp32"},
    {"gradient-checkpointing", "--checkpoint-activations"},
    {"activation-checkpointing", "--checkpoint-activations"},
    {"num-train-epochs", "--steps"},
    {"epochs", "--steps"},
    {"max-steps", "--steps"},
    {"model-name-or-path", "--init"},
    {"pretrained", "--init"},
    {"output-dir", "--checkpoints"},
    {"resume-from-checkpoint", "--resume"},
    {"max-seq-length", "--seq"},
    {"max-length", "--seq"},
    {"block-size", "--seq"},
    {"max-grad-norm", "--clip-norm"},
    {"grad-clip", "--clip-norm"},
    {"logging-steps", "--log-every"},
    {"save-steps", "--save-every"},
    {"save-total-limit", "--keep"},
    {"lr-scheduler-type", "--lr-schedule"},
    {"warmup", "--warmup-steps"},
    {"adam-beta1", "--beta1"},
    {"adam-beta2", "--beta2"},
    {"adam-epsilon", "--eps"},
    {"train-file", "--data"},
    {"dataset", "--data"},
    {"max-new-tokens", "--length"},
    {"nproc-per-node", "--ranks"},
};

// What `flag` of another trainer is called here; "" if it is no such flag.
std::string own_name(const CLI::App& app, std::string flag) {
  std::replace(flag.begin(), flag.end(), '_', '-');
  const std::vector<std::string> known = known_flags(app);
  for (const auto& [theirs, ours] : kOtherNames) {
    const std::string name = ours;
    const std::string own = name.substr(0, name.find(' '));
    if (flag == std::string("--") + theirs &&
        std::find(known.begin(), known.end(), own) != known.end()) {
      return name;
    }
  }
  return "";
}

// The flag that a misspelt one may be; "" if none is near. Half of a short name is not near.
std::string flag_that_is_meant(const CLI::App& app, const std::string& given) {
  const std::string own = own_name(app, given);
  if (!own.empty()) return own.substr(0, own.find(' '));
  std::string flag = given;
  std::replace(flag.begin(), flag.end(), '_', '-');
  const std::vector<std::string> known = known_flags(app);
  const std::string nearest = nearest_name(flag, known);
  if (nearest.empty()) return "";
  const size_t distance = edit_distance(flag, nearest);
  const size_t letters = std::max(flag.size(), nearest.size()) - std::string_view("--").size();
  return distance < letters && (distance <= 2 || 3 * distance <= letters) ? nearest : "";
}

bool has_positionals(const CLI::App& app) {
  const std::vector<const CLI::Option*> options = app.get_options();
  return std::any_of(options.begin(), options.end(),
                     [](const CLI::Option* option) { return option->get_positional(); });
}

const CLI::Option* option_of(const CLI::App& app, const std::string& flag) {
  const CLI::Option* option = app.get_option_no_throw(flag);
  for (const CLI::App* sub : app.get_subcommands({})) {
    if (option == nullptr) option = sub->get_option_no_throw(flag);
  }
  return option;
}

// A flag whose value is missing would take the next flag for it. Takes such flags out. Behind the
// name of another program flags are that program's.
void take_out_bare(const CLI::App& app, std::vector<std::string>& words, WrongWords& wrong) {
  const auto is_flag = [&](const std::string& word) {
    return word.starts_with("--") && option_of(app, flag_of(word)) != nullptr;
  };
  bool is_value = false;
  for (auto word = words.begin(); word != words.end();) {
    const auto next = std::next(word);
    const bool positional = !word->starts_with("-") && !is_value;
    if (positional && app.get_subcommands({}).empty() && !has_positionals(app)) return;
    is_value = is_flag(*word) && word->find('=') == word->npos;
    const bool needs = is_flag(*word) && word->find('=') == word->npos &&
                       option_of(app, *word)->get_items_expected_min() > 0;
    if (!needs || (next != words.end() && !is_flag(*next))) {
      word = next;
      continue;
    }
    const std::string before =
        next == words.end() ? "the end of the line" : "the next flag, " + flag_of(*next);
    wrong.flags.insert(*word);
    wrong.problems.add(error(Code::kInvalidArgument,
                             "{}: its value is missing before {} ({} --help"
                             " lists all flags)",
                             *word, before, app.get_name()));
    word = words.erase(word);
  }
}

// Each unknown flag, and each word that is not a value of one.
void add_unknown(const CLI::App& app, WrongWords& wrong) {
  bool behind_flag = false;
  for (const std::string& word : app.remaining(true)) {
    const bool is_flag = word.starts_with("--");
    if (is_flag || !behind_flag) {
      wrong.flags.insert(flag_that_is_meant(app, flag_of(word)));
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
  const CLI::Option* option = option_of(app, flag);
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

// What CLI11 says of a wrong value, for a person.
std::string in_words(const std::string& message) {
  std::smatch found;
  if (std::regex_match(message, found, std::regex("Could not convert: (\\S+) = (.*)"))) {
    return fmt::format("{}: '{}' is not a number that it takes", found.str(1), found.str(2));
  }
  if (std::regex_match(message, found,
                       std::regex("(\\S+): At Most 1 required but received (\\d+)"))) {
    return fmt::format("{} is given {} times; give it once", found.str(1), found.str(2));
  }
  return message;
}

}  // namespace

std::string explain_unknown(const CLI::App& app, const std::string& given) {
  const std::string flag = flag_of(given);
  std::string text = "unknown flag or argument '" + flag + "'";
  const std::string own = own_name(app, flag);
  if (!own.empty()) text += fmt::format("; here it is {}", own);
  const std::string nearest = own.empty() ? flag_that_is_meant(app, flag) : "";
  if (!nearest.empty()) text += "; did you mean '" + nearest + "'?";
  return text + " (" + app.get_name() + " --help lists all)";
}

void init_cli(CLI::App& app) {
  app.set_version_flag("--version", std::string("elixir ") + kVersion);
  app.option_defaults()->always_capture_default();
  app.formatter(std::make_shared<HelpFormatter>());
}

// CLI11 stops at the first wrong value: then all is parsed again without it.
int parse_cli(CLI::App& app, std::vector<std::string>& words, WrongWords& wrong) {
  take_out_bare(app, words, wrong);
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
      const std::string message = in_words(failure.what());
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
        constexpr uint64_t kLeastWithoutUnit = 1 << 20;
        if (*parsed < kLeastWithoutUnit && text.find_first_not_of("0123456789") == text.npos) {
          throw CLI::ValidationError(
              flag, fmt::format("{0} means {0} bytes; give a unit, as in {0}GiB", text));
        }
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
