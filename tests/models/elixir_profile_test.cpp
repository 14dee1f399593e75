// The program elixir-profile as elixirctl runs it.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/subprocess.h"
#include "planner/profile_json.h"
#include "tests/support/sanitized.h"

namespace elixir {
namespace {

struct Ended {
  int exit_code = -1;
  std::string text;
  double cpu_s = 0;
  uint64_t resident_bytes = 0;
};

Ended run(std::vector<std::string> flags, bool errors = false) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return {};
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  flags.insert(flags.begin(), ELIXIR_PROFILE_PROGRAM);
  SpawnOptions options;
  options.argv = std::move(flags);
  (errors ? options.stderr_fd : options.stdout_fd) = write_end.get();
  const Result<pid_t> child = spawn(options);
  write_end.reset();
  Ended ended;
  char piece[1 << 16];
  for (ssize_t got = 0; (got = ::read(read_end.get(), piece, sizeof piece)) > 0;) {
    ended.text.append(piece, static_cast<size_t>(got));
  }
  int status = 0;
  rusage used{};
  ::wait4(*child, &status, 0, &used);
  ended.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  ended.cpu_s = seconds(used.ru_utime) + seconds(used.ru_stime);
  ended.resident_bytes = static_cast<uint64_t>(used.ru_maxrss) * 1024;
  return ended;
}

TEST(ElixirProfile, LooksAtOpt175bInASecondAndAGibibyte) {
  const Ended ended = run({"--model=opt-175b", "--batch=8", "--seq=1024"});
  ASSERT_EQ(ended.exit_code, 0);
  const Result<planner::ModelProfile> profile = planner::profile_from_json(ended.text);
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  EXPECT_NEAR(static_cast<double>(profile->total_numel()), 175e9, 1e9);
  EXPECT_EQ(profile->checkpoint_regions.size(), 2u * 96);
  if (kSanitized) return;
  EXPECT_LT(ended.resident_bytes, uint64_t{1} << 30);
  double cpu_s = ended.cpu_s;  // the least of some: others may use the processors
  for (int i = 0; i < 4 && cpu_s >= 1; ++i) {
    cpu_s = std::min(cpu_s, run({"--model=opt-175b", "--batch=8", "--seq=1024"}).cpu_s);
  }
  EXPECT_LT(cpu_s, 1);
}

// Its logits alone would be 3.9 GiB in FP32, and their gradient as much again.
TEST(ElixirProfile, ALlama8bOf8192TokensHoldsNoLogits) {
  for (const char* dtype : {"bf16", "fp32"}) {
    const Ended ended = run({"--config=" EXAMPLE_CONFIGS "/llama-3-8b.json", "--batch=1",
                             "--seq=8192", std::string("--dtype=") + dtype});
    ASSERT_EQ(ended.exit_code, 0);
    const Result<planner::ModelProfile> profile = planner::profile_from_json(ended.text);
    ASSERT_TRUE(profile.ok()) << profile.status().message();
    const double gib = static_cast<double>(profile->activation_bytes) / (1 << 30);
    std::printf("%s: %.2f GiB\n", dtype, gib);
    EXPECT_LT(gib, dtype == std::string("bf16") ? 5.5 : 11);
  }
}

TEST(ElixirProfile, RefusesWhatIsNoModel) {
  const Ended unknown = run({"--model=opt-176b"}, true);
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.text, ::testing::HasSubstr("did you mean 'opt-175b'"));
  EXPECT_EQ(run({}, true).exit_code, 2);
  const Ended longer = run({"--model=gpt2-small", "--seq=2048"}, true);
  EXPECT_EQ(longer.exit_code, 2);
  EXPECT_THAT(longer.text, ::testing::HasSubstr("1024"));
}

}  // namespace
}  // namespace elixir
