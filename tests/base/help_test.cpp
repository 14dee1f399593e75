#include "base/help.h"

#include <sstream>

#include "base/cli.h"
#include "base/wrapped.h"
#include "tests/support/matchers.h"

namespace elixir {
namespace {

TEST(Wrapped, BreaksAtSpacesAndIndents) {
  const auto at = [](const char* text, size_t columns, size_t indent) {
    return wrapped(text, {.columns = columns, .indent = indent, .begin = indent});
  };
  EXPECT_EQ(at("one two three", 80, 4), "one two three");
  EXPECT_EQ(at("one two three", 12, 4), "one two\n    three");
  EXPECT_EQ(at("one two three", 11, 4), "one two\n    three") << "exactly full";
  EXPECT_EQ(at("a-word-that-is-too-long b", 10, 2), "a-word-that-is-too-long\n  b");
  EXPECT_EQ(at("", 10, 2), "");
  EXPECT_EQ(at("text\n  an example that stays as it is\n\nmore", 20, 0),
            "text\n  an example that stays as it is\n\nmore");
}

TEST(Wrapped, ALabelHasItsColumnOrItsLine) {
  EXPECT_EQ(labelled("name", "text", 8), "name    text\n");
  EXPECT_EQ(labelled("a-long-name", "text", 8), "a-long-name\n        text\n");
}

TEST(HelpFormatter, ShowsNamesValuesAndDefaultsWithin80Columns) {
  CLI::App app("Trains.", "trainer");
  init_cli(app);
  int steps = 100;
  std::string mode = "auto";
  std::vector<std::string> files;
  bool fast = false;
  int layers = 0;
  app.add_option("--steps", steps, "Steps to take")->type_name("N");
  app.add_option("--a-name-that-is-long-indeed", mode,
                 "A description of many words that does not fit into one line of eighty columns")
      ->type_name("MODE");
  app.add_option("--mode", mode, "How (default: as it is)")->type_name("MODE");
  app.add_option("--data", files, "Files")->type_name("FILE")->required();
  app.add_flag("--fast,!--slow", fast, "Faster");
  app.add_option("--layers", layers, "Layers")->type_name("N")->check(CLI::Range(0, 9));
  app.add_subcommand("status", "Shows the state");
  app.footer(
      "A footer of many words that does not fit into one line of eighty columns is broken\n"
      "  trainer --an --example");
  const std::string help = app.help();
  EXPECT_THAT(help, HasSubstr("  --steps N               Steps to take (default: 100)\n"));
  EXPECT_THAT(help, HasSubstr("  --a-name-that-is-long-indeed MODE\n"
                              "                          A description of many words"));
  EXPECT_THAT(help, HasSubstr("How (default: as it is)\n"));
  EXPECT_THAT(help, HasSubstr("  --data FILE ... (required)\n"));
  EXPECT_THAT(help, HasSubstr("  --fast,--slow           Faster\n"));
  EXPECT_THAT(help, HasSubstr("  --layers N              Layers (default: 0)\n"));
  EXPECT_THAT(help, HasSubstr("  status                  Shows the state\n"));
  EXPECT_THAT(help, HasSubstr("columns is\nbroken\n  trainer --an --example\n"));
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
}

}  // namespace
}  // namespace elixir
