// elixirctl simulate-cache: the misses of an rCache, without training.

#include <iostream>
#include <iterator>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/text_file.h"
#include "ctl/command.h"
#include "planner/cache/belady.h"
#include "planner/json_fields.h"

namespace elixir::ctl {
namespace {

using Steps = std::vector<std::vector<uint32_t>>;

struct Arguments {
  std::string steps;
  int64_t blocks = 0;
  bool json = false;
};

// What --steps says, or the file or the standard input that it names.
Result<std::string> read_steps(const std::string& argument) {
  if (argument == "-") return std::string(std::istreambuf_iterator<char>(std::cin), {});
  return argument.starts_with('@') ? read_text_file(argument.substr(1)) : argument;
}

Result<Steps> parse_steps(const std::string& text) {
  Steps steps;
  Status status;
  const nlohmann::json file = {
      {"--steps", nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false)}};
  planner::JsonFields(file, "", &status).required("--steps", &steps);
  if (status.ok()) return steps;
  return error(Code::kBadInput,
               "{}; it must be JSON, by step the numbers of the chunks it needs, as "
               "[[0],[1,2],[0]]",
               status.message());
}

Result<planner::CacheCount> count(const Arguments& arguments) {
  const Result<std::string> text = read_steps(arguments.steps);
  if (!text.ok()) return text.status();
  const Result<Steps> steps = parse_steps(*text);
  if (!steps.ok()) return steps.status();
  return planner::simulate_cache(*steps, static_cast<uint32_t>(arguments.blocks));
}

int run(const CLI::App& app, const Arguments& arguments) {
  const Result<planner::CacheCount> counted = count(arguments);
  if (!counted.ok()) return report_failure(app, counted.status());
  if (arguments.json) {
    std::cout << fmt::format("{{\"misses\": {}, \"moved\": {}}}\n", counted->misses,
                             counted->moved);
  } else {
    std::cout << fmt::format("{} misses, {} chunks moved in and out\n", counted->misses,
                             counted->moved);
  }
  std::cout.flush();
  return 0;
}

}  // namespace

Command add_simulate_cache(CLI::App& app) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* const command = app.add_subcommand(
      "simulate-cache", "Misses of an rCache over the chunks of a step, by Belady's rule");
  command
      ->add_option("--steps", arguments->steps,
                   "by operator the chunks it needs, as JSON: [[0],[1,2],[0]]; @FILE, or - for "
                   "standard input")
      ->required();
  command->add_option("--blocks", arguments->blocks, "chunks that the rCache holds")
      ->required()
      ->check(CLI::Range(int64_t{0}, int64_t{std::numeric_limits<uint32_t>::max()}));
  command->add_flag("--json", arguments->json, "one JSON object: {misses, moved}");
  return {command, [&app, arguments] { return run(app, *arguments); }};
}

}  // namespace elixir::ctl
