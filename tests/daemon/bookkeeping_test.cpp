#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "base/clock.h"
#include "shm/futex.h"
#include "tests/daemon/job_fixture.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

namespace elixir::testing {
namespace {

constexpr uint32_t kRanks = 64, kChunks = 500;
constexpr int kRounds = 5;

template <typename Function>
int64_t duration_ns(const Function& function) {
  const int64_t begin_ns = monotonic_ns();
  function();
  return monotonic_ns() - begin_ns;
}

// What a system call that wakes nobody would take for each chunk and rank, here and now.
int64_t system_calls_ns() {
  const std::atomic<uint32_t> word{0};
  return duration_ns([&] {
    for (uint32_t i = 0; i < kRanks * kChunks; ++i) shm::futex_wake_all(word);
  });
}

// Of a step of many ranks and chunks elixird looks at what all have published, hands out the chunks
// and tells every rank of each. Of 64 ranks and 10,000 chunks a quarter of a second was once spent
// in system calls for nobody, and more in words that had not moved. Held against system calls of
// the same moment, since a machine may be slow.
TEST(Bookkeeping, OfAStepIsLessThanASystemCallAChunkAndRank) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own work would be measured";
  InProcessJob world({.model = make_model(ComputeType::kFp32, kRanks, kChunks, 128)});
  world.start();
  int64_t posts_ns = INT64_MAX, updates_ns = INT64_MAX, tick_ns = INT64_MAX, calls_ns = INT64_MAX;
  for (uint32_t step = 1; step <= kRounds; ++step) {
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      world.write_grads(rank, step);
      world.write_record(rank, make_record(step, kRanks));
      world.header(rank).posted_step.store(step);
    }
    posts_ns = std::min(posts_ns, duration_ns([&] {
                          for (uint32_t rank = 0; rank < kRanks; ++rank) {
                            world.job.look_at_posted(world.rank(rank));
                          }
                        }));
    updates_ns = std::min(updates_ns, duration_ns([&] { world.run_workers(); }));
    ASSERT_EQ(world.header(0).finished_step.load(), step);
    tick_ns = std::min(tick_ns, duration_ns([&] { world.job.look_at_everything(); }));
    calls_ns = std::min(calls_ns, system_calls_ns());
  }
  RecordProperty("posts_us", static_cast<int>(posts_ns / 1000));
  RecordProperty("updates_us", static_cast<int>(updates_ns / 1000));
  RecordProperty("tick_us", static_cast<int>(tick_ns / 1000));
  RecordProperty("system_calls_us", static_cast<int>(calls_ns / 1000));
  EXPECT_LT(posts_ns, calls_ns / 4);
  EXPECT_LT(updates_ns, calls_ns * 2);  // arithmetic on the gradients of all ranks included
  EXPECT_LT(tick_ns, calls_ns / 50);
}

}  // namespace
}  // namespace elixir::testing
