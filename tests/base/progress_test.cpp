#include "base/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>

#include "base/clock.h"

namespace elixir {
namespace {

TEST(ProgressTest, WhatIsShortIsNotToldOf) {
  ::testing::internal::CaptureStderr();
  const int64_t begin_ns = monotonic_ns();
  {
    const ProgressNotes notes([] { return std::string("half of it"); });
  }
  EXPECT_LT(seconds_since(begin_ns), 2);  // and nobody waits for the thread
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(ProgressTest, WhatTakesTwoSecondsIs) {
  ::testing::internal::CaptureStderr();
  std::atomic<bool> asked = false;
  const int64_t begin_ns = monotonic_ns();
  {
    const ProgressNotes notes([&] {
      asked = true;
      return std::string("half of it");
    });
    while (!asked && seconds_since(begin_ns) < 30) ::usleep(10'000);
    EXPECT_GE(seconds_since(begin_ns), 2);
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "half of it\n");
}

TEST(ProgressTest, BytesDone) {
  EXPECT_EQ(bytes_done("read", 1 << 20, 4 << 20), "read: 1.00 MiB of 4.00 MiB, 25 %");
  EXPECT_EQ(bytes_done("read", 0, 0), "read: 0 B of 0 B, 100 %");
}

}  // namespace
}  // namespace elixir
