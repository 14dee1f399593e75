// Random schedules of an honest job beside a hostile one: job/job_schedule.h.
//
//   ELIXIR_FUZZ_SEED       the first seed (it is printed; with ELIXIR_EVERY_CASE a new one each
//   time) ELIXIR_FUZZ_SCHEDULES  how many, a seed each
//
// That they find an elixird with one line changed is shown by tests/mutants/client_core.toml.

#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "base/log.h"
#include "tests/fuzz/job/fuzzed_job.h"
#include "tests/fuzz/job/job_schedule.h"
#include "tests/support/every_case.h"

namespace elixir::fuzz {
namespace {

volatile uint64_t seed_in_hand = 0;

// The product aborts where it finds a bug itself.
void say_seed(int) {
  std::fprintf(stderr, "ELIXIR_FUZZ_SEED=%llu ELIXIR_FUZZ_SCHEDULES=1\n",
               static_cast<unsigned long long>(seed_in_hand));
  std::signal(SIGABRT, SIG_DFL);
  std::abort();
}

std::vector<uint8_t> random_schedule(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint8_t> bytes(20 + random() % 300);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

// Of so many schedules with seeds from `first` on, the first one that breaks an invariant.
std::string first_violation(uint64_t first, uint64_t schedules, ScheduleCounts* counts) {
  for (uint64_t seed = first; seed < first + schedules; ++seed) {
    seed_in_hand = seed;
    try {
      run_schedule(random_schedule(seed), counts);
    } catch (const Violation& violation) {
      return fmt::format("ELIXIR_FUZZ_SEED={} ELIXIR_FUZZ_SCHEDULES=1: {}", seed, violation.what());
    }
  }
  return "";
}

class JobSchedules : public ::testing::Test {
 protected:
  JobSchedules() {
    init_log("test", LogLevel::kError);
    std::signal(SIGABRT, say_seed);
  }
};

TEST_F(JobSchedules, AHonestJobGoesOnWhateverAHostileOneDoes) {
  const bool nightly = every_case();
  const uint64_t seed =
      number_setting("ELIXIR_FUZZ_SEED", nightly ? uint64_t{std::random_device()()} << 32 : 1);
  const uint64_t schedules = number_setting("ELIXIR_FUZZ_SCHEDULES", nightly ? 300000 : 15000);
  ScheduleCounts counts;
  EXPECT_EQ(first_violation(seed, schedules, &counts), "");
  std::printf(
      "schedules %llu operations %llu; steps: honest %llu hostile %llu skipped %llu; ends: "
      "honest %llu goodbyes %llu deaths, hostile %llu goodbyes %llu faults\n",
      static_cast<unsigned long long>(counts.schedules),
      static_cast<unsigned long long>(counts.operations),
      static_cast<unsigned long long>(counts.honest_steps),
      static_cast<unsigned long long>(counts.hostile_steps),
      static_cast<unsigned long long>(counts.skipped),
      static_cast<unsigned long long>(counts.honest_goodbyes),
      static_cast<unsigned long long>(counts.honest_deaths),
      static_cast<unsigned long long>(counts.hostile_goodbyes),
      static_cast<unsigned long long>(counts.hostile_faults));
  if (schedules < 1000) return;  // one seed again
  // Schedules that get nowhere would find nothing.
  EXPECT_GT(counts.honest_steps, counts.schedules);
  EXPECT_GT(counts.hostile_steps, counts.schedules / 4);
  for (const uint64_t seen : {counts.skipped, counts.honest_deaths, counts.honest_goodbyes,
                              counts.hostile_faults, counts.hostile_goodbyes}) {
    EXPECT_GT(seen, counts.schedules / 100);
  }
}

TEST_F(JobSchedules, AreTheSameAgain) {
  ScheduleCounts first, second;
  EXPECT_EQ(first_violation(1, 50, &first), "");
  EXPECT_EQ(first_violation(1, 50, &second), "");
  EXPECT_EQ(first.operations, second.operations);
  EXPECT_EQ(first.honest_steps, second.honest_steps);
  EXPECT_EQ(first.hostile_steps, second.hostile_steps);
  EXPECT_EQ(first.hostile_faults, second.hostile_faults);
}

}  // namespace
}  // namespace elixir::fuzz
