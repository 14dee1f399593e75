#include "base/cli.h"

#include <vector>

#include "base/version.h"
#include "tests/support/matchers.h"

namespace elixir {
namespace {

struct Outcome {
  int code;
  std::string out, err;
  int steps;
};

Outcome parse(std::vector<const char*> arguments) {
  CLI::App app("Trains.", "trainer");
  init_cli(app);
  Outcome outcome{};
  outcome.steps = 100;
  app.add_option("--steps", outcome.steps, "Steps to take");
  app.add_subcommand("status", "How it is");
  arguments.insert(arguments.begin(), "trainer");
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  outcome.code = parse_cli(app, static_cast<int>(arguments.size()), arguments.data());
  outcome.out = ::testing::internal::GetCapturedStdout();
  outcome.err = ::testing::internal::GetCapturedStderr();
  return outcome;
}

TEST(CliTest, GoesOnAfterAGoodLine) {
  const Outcome outcome = parse({"--steps", "7"});
  EXPECT_EQ(outcome.code, -1);
  EXPECT_EQ(outcome.steps, 7);
  EXPECT_EQ(outcome.out + outcome.err, "");
}

TEST(CliTest, HelpShowsDefaults) {
  const Outcome outcome = parse({"--help"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("--steps"));
  EXPECT_THAT(outcome.out, HasSubstr("100"));
}

TEST(CliTest, VersionIsThePackages) {
  const Outcome outcome = parse({"--version"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out, std::string("elixir ") + kVersion + "\n");
}

TEST(CliTest, AnUnknownFlagNamesTheNearest) {
  for (const char* flag : {"--stesp", "--stesp=3"}) {
    const Outcome outcome = parse({flag});
    EXPECT_EQ(outcome.code, 2);
    EXPECT_EQ(outcome.err,
              "trainer: unknown flag or argument '--stesp'; did you mean '--steps'? (trainer "
              "--help lists all)\n");
  }
  EXPECT_THAT(parse({"statsu"}).err, HasSubstr("'status'"));
}

TEST(CliTest, AnUnknownFlagNearToNothingSaysSo) {
  const Outcome outcome = parse({"--qqqqqqqqqqqqqq"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--qqqqqqqqqqqqqq"));
  EXPECT_EQ(outcome.err.find("did you mean"), std::string::npos);
}

TEST(CliTest, AWrongValueIsOneLine) {
  const Outcome outcome = parse({"--steps", "many"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--steps"));
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1);
}

TEST(CliTest, AllThatIsWrongIsToldAtOnce) {
  CLI::App app("Trains.", "trainer");
  init_cli(app);
  int steps = 1, batch = 1, seq = 1;
  std::vector<std::string> data;
  app.add_option("--steps", steps, "")->check(CLI::Range(1, 9));
  app.add_option("--steps-ahead", batch, "");
  app.add_option("--seq", seq, "");
  app.add_option("--data", data, "")->expected(1, -1);
  std::vector<std::string> words = {"--steps", "many",       "--steps-ahead=x", "--sqe", "3",
                                    "--seq",   "-4",         "--data",          "a",     "b",
                                    "stray",   "--help-me=1"};
  WrongWords wrong;
  EXPECT_EQ(parse_cli(app, words, wrong), -1);
  std::string all;
  for (const Status& problem : wrong.problems.all()) all += problem.message() + "\n";
  EXPECT_EQ(wrong.problems.all().size(), 4u) << all;
  for (const char* said : {"--steps: Value many", "--steps-ahead: 'x' is not a number",
                           "'--sqe'; did you mean '--seq'?", "'--help-me'"}) {
    EXPECT_THAT(all, HasSubstr(said));
  }
  EXPECT_THAT(wrong.flags, ::testing::IsSupersetOf({"--steps", "--steps-ahead", "--seq"}));
  EXPECT_EQ(seq, -4) << "the others have their effect";
  EXPECT_THAT(data, ElementsAre("a", "b", "stray"));
  EXPECT_THAT(words,
              ElementsAre("--sqe", "3", "--seq", "-4", "--data", "a", "b", "stray", "--help-me=1"));
}

struct Words {
  std::vector<std::string> words;
  const char* says;
};

TEST(CliTest, AFlagWithoutItsValueDoesNotTakeTheNextFlag) {
  for (const Words& given : {Words{{"--init", "--data", "a"},
                                   "--init: its value is missing before the next flag, --data"},
                             Words{{"--data", "a", "--init"}, "before the end of the line"},
                             Words{{"--init", "--data=a"}, "the next flag, --data"}}) {
    CLI::App app("Trains.", "trainer");
    init_cli(app);
    std::string init, data;
    app.add_option("--init", init, "");
    app.add_option("--data", data, "");
    std::vector<std::string> words = given.words;
    WrongWords wrong;
    EXPECT_EQ(parse_cli(app, words, wrong), -1);
    ASSERT_EQ(wrong.problems.all().size(), 1u);
    EXPECT_THAT(wrong.problems.all().front().message(), HasSubstr(given.says));
    EXPECT_THAT(wrong.flags, ElementsAre("--init"));
    EXPECT_EQ(data, "a");
  }
}

TEST(CliTest, NamesOfOtherTrainersAreTranslated) {
  for (const auto& [flag, says] : {std::pair{"--learning_rate", "'; here it is --lr ("},
                                   {"--bf16", "'; here it is --dtype bf16 ("},
                                   {"--per_device_train_batch_size", "'; here it is --batch ("},
                                   {"--num_train_epochs", "'--num_train_epochs' ("},
                                   {"--ba", "'--ba' ("},
                                   {"--batsh", "did you mean '--batch'?"}}) {
    CLI::App app("Trains.", "trainer");
    init_cli(app);
    std::string lr, batch, dtype;
    app.add_option("--lr", lr, "");
    app.add_option("--batch", batch, "");
    app.add_option("--dtype", dtype, "");
    EXPECT_THAT(explain_unknown(app, flag), HasSubstr(says));
  }
}

TEST(CliTest, ABareNumberOfMemoryNeedsAUnit) {
  for (const auto& [given, fits] : {std::pair{"24", false},
                                    {"24GiB", true},
                                    {"0.5MiB", true},
                                    {"1000000", false},
                                    {"2000000", true}}) {
    CLI::App app("Trains.", "trainer");
    init_cli(app);
    std::optional<uint64_t> bytes;
    add_bytes(app, "--memory", bytes, "");
    std::vector<std::string> words = {"--memory", given};
    WrongWords wrong;
    parse_cli(app, words, wrong);
    EXPECT_EQ(wrong.problems.empty(), fits) << given;
  }
}

TEST(CliTest, AFailureIsOneLineAndItsExitCode) {
  CLI::App app("Trains.", "trainer");
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(report_failure(app, error(Code::kBadInput, "no text")), 4);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "trainer: no text\n");
}

}  // namespace
}  // namespace elixir
