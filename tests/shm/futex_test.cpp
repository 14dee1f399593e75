#include "shm/futex.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "tests/support/patience.h"

namespace elixir::shm {
namespace {

constexpr int64_t kLongNs = 60'000'000'000;

TEST(FutexTest, AWordThatHasMovedOnIsNotWaitedFor) {
  const std::atomic<uint32_t> word = 2;
  EXPECT_FALSE(futex_wait(word, 1, kLongNs)) << "it slept until the time was over";
}

TEST(FutexTest, ATimeoutEndsTheWait) {
  const std::atomic<uint32_t> unchanged = 1;
  EXPECT_FALSE(futex_wait(unchanged, 1, 1'000'000)) << "nobody had to wake";
}

// A sleeper of which the word changes; true when it slept until the time was over. False, too,
// where it began to sleep or ended before it was seen to sleep.
bool slept_too_long(bool wakes, int64_t timeout_ns) {
  std::atomic<uint32_t> word = 1;
  std::atomic<pid_t> sleeper = 0;
  std::atomic<bool> over = false;
  bool too_long = false;
  std::thread thread([&] {
    sleeper.store(::gettid());
    too_long = futex_wait(word, 1, timeout_ns);
    over = true;
  });
  EXPECT_TRUE(test::eventually([&] { return over || (sleeper != 0 && test::asleep(sleeper)); }));
  word.store(2);
  if (wakes) futex_wake_all(word);
  thread.join();
  return too_long;
}

TEST(FutexTest, AWakeThatIsForgottenIsTold) {
  // Longer each time: on a busy machine the sleeper may be seen only when its time is over.
  int64_t timeout_ns = 10'000'000;
  EXPECT_TRUE(test::eventually([&] { return slept_too_long(false, timeout_ns *= 2); }));
  EXPECT_FALSE(slept_too_long(true, kLongNs));
}

// Two threads pass a number back and forth: a wake-up that is lost is a sleep until its timeout.
TEST(FutexTest, NoWakeIsLostBetweenWhoCountsItselfAndWhoAsks) {
  constexpr uint32_t kRounds = 20000;
  std::atomic<uint32_t> word{0}, waiters{0};
  std::atomic<bool> slept_through{false};
  const auto play = [&](uint32_t parity) {
    for (uint32_t turn = parity; turn < kRounds; turn += 2) {
      while (word.load(std::memory_order_acquire) != turn) {
        const Waiter waits(waiters);
        const uint32_t seen = word.load(std::memory_order_acquire);
        if (seen == turn) break;
        if (futex_wait(word, seen, kLongNs)) slept_through = true;
      }
      word.store(turn + 1, std::memory_order_release);
      fence_before_wakes();
      wake_waiters(word, waiters);
    }
  };
  std::thread other(play, 1);
  play(0);
  other.join();
  EXPECT_FALSE(slept_through.load());
  EXPECT_EQ(waiters.load(), 0u);
}

TEST(FutexTest, AWakeReachesAnotherProcessIfThatCountsItselfOrAllAreWoken) {
  void* shared = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* word = new (shared) std::atomic<uint32_t>(0);
  auto* wakes = new (word + 1) std::atomic<uint32_t>(0);
  const std::atomic<uint32_t> waiters{0};
  const pid_t child = ::fork();
  if (child == 0) {
    bool slept_through = false;
    while (word->load(std::memory_order_acquire) == 0) {
      slept_through |= futex_wait(*word, 0, kLongNs);
      ++*wakes;
    }
    ::_exit(slept_through ? 1 : 0);
  }
  EXPECT_TRUE(test::eventually([&] { return test::asleep(child); }));
  fence_before_wakes();
  wake_waiters(*word, waiters);
  EXPECT_TRUE(test::eventually([&] { return test::asleep(child); }));
  word->store(1, std::memory_order_release);
  futex_wake_all(*word);
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(wakes->load(), 1u);
  ::munmap(shared, 4096);
}

}  // namespace
}  // namespace elixir::shm
