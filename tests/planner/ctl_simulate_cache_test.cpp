// elixirctl simulate-cache, from its command line to what it prints.

#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "ctl/command.h"
#include "tests/support/matchers.h"

namespace elixir::ctl {
namespace {

struct Outcome {
  int code;
  std::string out, err;
};

Outcome simulate_cache(const std::vector<std::string>& arguments, const std::string& input = "") {
  CLI::App app("", "elixirctl");
  init_cli(app);
  const Command command = add_simulate_cache(app);
  std::vector<const char*> argv = {"elixirctl", "simulate-cache"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  std::istringstream stdin_text(input);
  std::streambuf* const stdin_before = std::cin.rdbuf(stdin_text.rdbuf());
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  int code = parse_cli(app, static_cast<int>(argv.size()), argv.data());
  if (code < 0) code = command.run();
  std::cin.rdbuf(stdin_before);
  const std::string out = ::testing::internal::GetCapturedStdout();
  return {code, out, ::testing::internal::GetCapturedStderr()};
}

const char* const kExample = "[[0],[1,2],[3],[3],[1,2],[0]]";

TEST(SimulateCacheCommand, PrintsTheExample) {
  const Outcome json = simulate_cache({"--steps", kExample, "--blocks", "2", "--json"});
  EXPECT_EQ(json.code, 0);
  EXPECT_EQ(json.out, "{\"misses\": 6, \"moved\": 12}\n");
  const Outcome words = simulate_cache({"--steps", kExample, "--blocks", "2"});
  EXPECT_EQ(words.code, 0);
  EXPECT_EQ(words.out, "6 misses, 12 chunks moved in and out\n");
}

TEST(SimulateCacheCommand, ReadsAFileOrStandardInput) {
  const std::string path = ::testing::TempDir() + "/simulate_cache_steps.json";
  std::ofstream(path) << kExample;
  EXPECT_THAT(simulate_cache({"--steps", "@" + path, "--blocks", "2"}).out, HasSubstr("6 misses"));
  EXPECT_THAT(simulate_cache({"--steps", "-", "--blocks", "2"}, kExample).out,
              HasSubstr("6 misses"));
  const Outcome missing = simulate_cache({"--steps", "@/no/such/file", "--blocks", "2"});
  EXPECT_EQ(missing.code, 4);
  EXPECT_THAT(missing.err, HasSubstr("/no/such/file"));
}

TEST(SimulateCacheCommand, RefusesAStepThatNeedsMoreChunksThanBlocks) {
  const Outcome outcome = simulate_cache({"--steps", kExample, "--blocks", "1", "--json"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("step 1 needs 2 chunks"));
  EXPECT_EQ(simulate_cache({"--steps", "[[0]]", "--blocks", "0"}).code, 2);
  EXPECT_EQ(simulate_cache({"--steps", "[]", "--blocks", "0"}).code, 0);
}

TEST(SimulateCacheCommand, SaysWhatIsWrongWithTheSteps) {
  for (const char* bad : {"", "[[0]", "{}", "7", "[0]", "[[-1]]", "[[0.5]]", "[[\"0\"]]",
                          "[[null]]", "[[4294967296]]", "[[0],[1,-2]]", "[[0]]]", "\xff"}) {
    const Outcome outcome = simulate_cache({"--steps", bad, "--blocks", "2", "--json"});
    EXPECT_EQ(outcome.code, 4) << bad;
    EXPECT_EQ(outcome.out, "") << bad;
    EXPECT_THAT(outcome.err, HasSubstr("--steps")) << bad;
  }
  EXPECT_THAT(simulate_cache({"--steps", "[[0],[1,-2]]", "--blocks", "2"}).err,
              HasSubstr("--steps[1][1] is -2, it cannot be negative"));
}

TEST(SimulateCacheCommand, RefusesABadNumberOfBlocks) {
  for (const char* bad : {"-1", "two", "1.5", "4294967296"}) {
    EXPECT_EQ(simulate_cache({"--steps", "[[0]]", "--blocks", bad}).code, 2) << bad;
  }
  EXPECT_EQ(simulate_cache({"--steps", "[[0]]"}).code, 2);
  EXPECT_EQ(simulate_cache({"--blocks", "2"}).code, 2);
}

}  // namespace
}  // namespace elixir::ctl
