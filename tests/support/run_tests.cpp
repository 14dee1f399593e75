#include "tests/support/run_tests.h"

#include <gmock/gmock.h>

#include <csignal>
#include <cstdio>

namespace elixir::test {
namespace {

constexpr int kSkipped = 77;  // cmake/Elixir.cmake tells ctest

// Reasons of one line: what was streamed, not "Skipped" before it.
void tell_skip(const ::testing::TestInfo& test) {
  std::string reason;
  for (int i = 0; i < test.result()->total_part_count(); ++i) {
    const ::testing::TestPartResult& part = test.result()->GetTestPartResult(i);
    if (part.skipped()) reason = part.message();
  }
  reason.erase(0, reason.starts_with("Skipped\n") ? 8 : 0);
  reason.resize(std::min(reason.size(), reason.find('\n')));
  std::printf("skipped: %s.%s: %s\n", test.test_suite_name(), test.name(), reason.c_str());
}

// A shell that starts a run in its background, or nohup, has it ignore these, and so would each
// program of a test.
void heed_interrupts() {
  for (const int number : {SIGINT, SIGQUIT, SIGHUP}) std::signal(number, SIG_DFL);
}

}  // namespace

int run_tests(int argc, char** argv, const std::string& reason) {
  ::testing::InitGoogleMock(&argc, argv);
  if (!reason.empty() && !::testing::GTEST_FLAG(list_tests)) {
    std::printf("skipped: %s\n", reason.c_str());
    return kSkipped;
  }
  heed_interrupts();
  const int outcome = RUN_ALL_TESTS();
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const ::testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int k = 0; k < suite.total_test_count(); ++k) {
      if (suite.GetTestInfo(k)->result()->Skipped()) tell_skip(*suite.GetTestInfo(k));
    }
  }
  const bool ran_none = all.skipped_test_count() == all.test_to_run_count();
  return outcome == 0 && all.skipped_test_count() > 0 && ran_none ? kSkipped : outcome;
}

}  // namespace elixir::test
