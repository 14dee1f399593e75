#include "base/progress.h"

#include <atomic>

#include "base/clock.h"
#include "tests/support/matchers.h"
#include "tests/support/patience.h"

namespace elixir {
namespace {

TEST(ProgressTest, WhatIsShortIsNotToldOf) {
  ::testing::internal::CaptureStderr();
  const int64_t begin_ns = monotonic_ns();
  {
    const ProgressNotes notes([] { return std::string("half of it"); });
  }
  const bool is_short = seconds_since(begin_ns) < 2;  // but where this thread was held up
  const std::string told = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(told.empty() || !is_short) << told;
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
    EXPECT_TRUE(test::eventually([&] { return asked.load(); }));
    EXPECT_GE(seconds_since(begin_ns), 2);
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), StartsWith("half of it\n"));
}

TEST(ProgressTest, BytesDone) {
  EXPECT_EQ(bytes_done("read", 1 << 20, 4 << 20), "read: 1.00 MiB of 4.00 MiB, 25 %");
  EXPECT_EQ(bytes_done("read", 0, 0), "read: 0 B of 0 B, 100 %");
}

}  // namespace
}  // namespace elixir
