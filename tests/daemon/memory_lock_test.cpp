#include "daemon/memory_lock.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm/segment.h"
#include "tests/daemon/daemon_process.h"
#include "tests/support/matchers.h"

namespace elixir::daemon {
namespace {

constexpr uint64_t kPage = 4096, kMiB = 1 << 20;

shm::Segment filled(uint64_t bytes) { return must(shm::Segment::create("test", bytes)); }

std::span<const std::byte> bytes_of(const shm::Segment& segment) {
  return {segment.data(), segment.bytes()};
}

// A page that is not there counts, as one in swap does; here it is a hole.
void lose_page(const shm::Segment& segment, uint64_t page) {
  ASSERT_EQ(::fallocate(segment.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                        static_cast<off_t>(page * kPage), kPage),
            0);
}

TEST(SwapWatch, CountsWhatIsNotInMemory) {
  const shm::Segment first = filled(kMiB), second = filled(3 * kPage);
  SwapWatch watch;
  watch.add(bytes_of(first));
  watch.add(bytes_of(second));
  watch.look(16 * kMiB);
  if (!watch.swapped_bytes()) GTEST_SKIP() << "the system does not tell";
  EXPECT_EQ(watch.swapped_bytes(), 0u);
  for (const uint64_t page : {0, 7, 255}) lose_page(first, page);
  lose_page(second, 2);
  watch.look(16 * kMiB);
  EXPECT_EQ(watch.swapped_bytes(), 4 * kPage);
}

// Says nothing new before all has been looked at; then it begins again.
TEST(SwapWatch, LooksPieceByPiece) {
  const shm::Segment first = filled(8 * kPage), second = filled(2 * kPage);
  SwapWatch watch;
  watch.add(bytes_of(first));
  watch.add(bytes_of(second));
  lose_page(first, 0);
  lose_page(second, 1);
  for (int round = 0; round < 3; ++round) {
    for (int piece = 0; piece < 3; ++piece) {
      EXPECT_EQ(watch.swapped_bytes(), round == 0 ? 0 : 2 * kPage);
      watch.look(3 * kPage);
      if (!watch.swapped_bytes()) GTEST_SKIP() << "the system does not tell";
    }
    watch.look(3 * kPage);
    EXPECT_EQ(watch.swapped_bytes(), 2 * kPage) << round;
  }
}

TEST(SwapWatch, OfNothingIsNothing) {
  SwapWatch watch;
  watch.look(kMiB);
  EXPECT_EQ(watch.swapped_bytes(), 0u);
}

// Without a page before it is filled: what is locked is never more than what a job has.
TEST(MemoryLock, WhatIsFilledLaterIsLocked) {
  const uint64_t before = testing::locked_bytes(::getpid());
  bool locked = false;
  const shm::Segment segment =
      must(shm::Segment::create_unfilled("test", 64 * kPage, [&](void* address, uint64_t bytes) {
        locked = lock_as_filled(address, bytes);
      }));
  if (!locked) GTEST_SKIP() << "no memory may be locked here";
  EXPECT_EQ(testing::locked_bytes(::getpid()) - before, segment.bytes());
  unsigned char in_memory[64];
  ASSERT_EQ(::mincore(segment.data(), segment.bytes(), in_memory), 0);
  for (const unsigned char page : in_memory) EXPECT_EQ(page & 1, 0);
  ASSERT_TRUE(segment.fill(0, segment.bytes()).ok());
  ASSERT_EQ(::mincore(segment.data(), segment.bytes(), in_memory), 0);
  for (const unsigned char page : in_memory) EXPECT_EQ(page & 1, 1);
}

}  // namespace
}  // namespace elixir::daemon
