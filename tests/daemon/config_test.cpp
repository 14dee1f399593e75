#include "daemon/config.h"

#include <CLI/CLI.hpp>

#include "client/session/session.h"
#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"

namespace elixir::daemon {
namespace {

int read(const std::vector<std::string>& arguments, Config* config) {
  CLI::App app{"", "elixird"};
  std::vector<const char*> argv = {"elixird"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  return read_config(app, static_cast<int>(argv.size()), argv.data(), config);
}

TEST(Config, FlagsGoOverTheFile) {
  const TemporaryFolder folder;
  const std::string file = folder.write(
      "elixird.toml",
      "workers = 3\nmemory_limit = \"2GiB\"\nslice_numel = 4096\nexit_when_idle = 1.5\n"
      "no_bandwidth_probe = true\nlog_level = \"warn\"\nmax_jobs = 7\n");
  Config config;
  ASSERT_EQ(read({"--config", file, "--workers", "5", "--log-level", "error"}, &config), -1);
  EXPECT_EQ(config.workers, 5u);
  EXPECT_EQ(config.memory_limit_bytes, 2ull << 30);
  EXPECT_EQ(config.slice_numel, 4096u);
  EXPECT_EQ(config.exit_when_idle, 1.5);
  EXPECT_TRUE(config.no_bandwidth_probe);
  EXPECT_EQ(config.log_level, LogLevel::kError);
  EXPECT_EQ(config.max_jobs, 7u);
}

// Ranks that come minutes apart are waited for by both sides alike.
TEST(Config, ElixirdIsAsPatientAsItsTrainers) {
  EXPECT_GE(Config().attach_timeout_s, SessionOptions().ranks_timeout_s);
}

TEST(Config, BytesMayBeANumber) {
  const TemporaryFolder folder;
  Config config;
  ASSERT_EQ(read({"--config", folder.write("a.toml", "memory_limit = 4096\n")}, &config), -1);
  EXPECT_EQ(config.memory_limit_bytes, 4096u);
  EXPECT_EQ(config.memory_margin_bytes, 256u << 20);
}

TEST(Config, UnknownKeyNamesTheNearest) {
  const TemporaryFolder folder;
  Config config;
  const Status status = apply_toml(folder.write("a.toml", "\nworker = 3\n"), &config);
  expect_refused(status, Code::kInvalidArgument, {"a.toml:2", "did you mean '--workers'"});
  EXPECT_EQ(read({"--config", folder.path() + "/a.toml"}, &config), 2);
}

TEST(Config, RefusesWrongTypesRangesAndFiles) {
  const TemporaryFolder folder;
  for (const char* text :
       {"workers = \"two\"", "workers = -1", "workers = 5000000000", "slice_numel = 1.5",
        "no_bandwidth_probe = 1", "max_jobs = [1]", "workers = ", "exit_when_idle = \"x\""}) {
    Config config;
    EXPECT_FALSE(apply_toml(folder.write("a.toml", text), &config).ok()) << text;
  }
  Config config;
  EXPECT_FALSE(apply_toml(folder.path() + "/absent.toml", &config).ok());
  for (const std::vector<std::string>& flags :
       std::vector<std::vector<std::string>>{{"--workers", "257"},
                                             {"--slice-numel", "0"},
                                             {"--memory-limit", "much"},
                                             {"--exit-when-idle", "-1"},
                                             {"--max-sessions", "0"},
                                             {"--log-level", "loud"},
                                             {"--worker", "1"}}) {
    Config other;
    EXPECT_EQ(read(flags, &other), 2) << flags[0];
  }
}

// Slices cost elixird's heap and a worker's way to the queue, each of them.
TEST(Config, SlicesOfAUserAreNotTooSmall) {
  const TemporaryFolder folder;
  Config config;
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(read({"--slice-numel", "4095"}, &config), 2);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("slice_numel is 4095; 4096 to 1073741824 are possible: leave it out for "
                        "65536"));
  expect_refused(apply_toml(folder.write("a.toml", "slice_numel = 1"), &config),
                 Code::kInvalidArgument, {"a.toml:1: ", "slice_numel is 1; 4096 to"});
  EXPECT_EQ(read({"--slice-numel", "4096"}, &config), -1);
  EXPECT_EQ(config.slice_numel, 4096u);
  EXPECT_EQ(read({"--test-slice-numel", "64"}, &config), -1);
  EXPECT_EQ(config.slice_numel, 64u);
  EXPECT_EQ(read({"--test-slice-numel", "0"}, &config), 2);
}

}  // namespace
}  // namespace elixir::daemon
