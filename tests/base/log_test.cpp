#include "base/log.h"

#include "tests/support/matchers.h"

namespace elixir {
namespace {

TEST(LogTest, OneLineAnEvent) {
  init_log("tester");
  ::testing::internal::CaptureStderr();
  log_info("attach", "session={} rank={}", 1, 0);
  log_warn("alone", "");
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, MatchesRegex("[0-9-]+T[0-9:.]+Z info tester event=attach session=1 rank=0\n"
                                 "[0-9-]+T[0-9:.]+Z warning tester event=alone\n"));
}

TEST(LogTest, TheLeastLevelIsKept) {
  init_log("tester", LogLevel::kWarn);
  ::testing::internal::CaptureStderr();
  log_info("hidden", "");
  log_error("shown", "");
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(text.find("hidden"), std::string::npos);
  EXPECT_NE(text.find("shown"), std::string::npos);
  init_log("tester");
}

// A name that came from a peer may hold anything, braces included.
TEST(LogTest, FieldsAreNotAFormat) {
  ::testing::internal::CaptureStderr();
  log_line(LogLevel::kInfo, "odd", "job={}{0}%s");
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("job={}{0}%s"), std::string::npos);
}

}  // namespace
}  // namespace elixir
