#include "shm/futex.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/support/patience.h"

namespace elixir::shm {
namespace {

constexpr int64_t kLongNs = 60'000'000'000;

TEST(FutexTest, AWordThatHasMovedOnIsNotWaitedFor) {
  const std::atomic<uint32_t> word = 2;
  const int64_t start_ns = monotonic_ns();
  futex_wait(word, 1, kLongNs);
  EXPECT_LT(monotonic_ns() - start_ns, kLongNs / 2);
}

TEST(FutexTest, ATimeoutEndsTheWait) {
  const std::atomic<uint32_t> word = 1;
  const int64_t start_ns = monotonic_ns();
  futex_wait(word, 1, 1'000'000);
  EXPECT_LT(monotonic_ns() - start_ns, kLongNs / 2);
}

TEST(FutexTest, AWakeReachesAnotherProcess) {
  void* shared = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* word = new (shared) std::atomic<uint32_t>(0);
  const pid_t child = ::fork();
  if (child == 0) {
    const int64_t start_ns = monotonic_ns();
    while (word->load(std::memory_order_acquire) == 0) futex_wait(*word, 0, kLongNs);
    ::_exit(monotonic_ns() - start_ns < kLongNs / 2 ? 0 : 1);
  }
  EXPECT_TRUE(test::eventually([&] { return test::asleep(child); }));
  word->store(1, std::memory_order_release);
  futex_wake_all(*word);
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  ::munmap(shared, 4096);
}

}  // namespace
}  // namespace elixir::shm
