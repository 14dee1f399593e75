// One call of the system fails in elixird: a trainer is told why, or notices nothing. Then elixird
// holds what it held before, and serves the next job.

#include <gtest/gtest.h>

#include <cerrno>

#include "base/clock.h"
#include "shm/attach_socket.h"
#include "tests/failing_calls/under_failures.h"
#include "tests/support/patience.h"

namespace elixir::testing {
namespace {

// Beside kOfBothSides.
constexpr FailingCall kWhileItServes[] = {
    {Call::kAccept, EMFILE},        {Call::kAccept, EINTR},
    {Call::kAccept, ENOMEM},        {Call::kAccept, ECONNABORTED},
    {Call::kAddSeals, EPERM},       {Call::kEpollControl, ENOSPC, Way::kError, Maker::kLibzmq},
    {Call::kFallocate, ENOSPC},     {Call::kFallocate, EINTR},
    {Call::kFtruncate, ENOSPC},     {Call::kFtruncate, EINTR},
    {Call::kMadvise, ENOMEM},       {Call::kMadvise, EINTR},
    {Call::kMemfdCreate, ENOMEM},   {Call::kOpen, EMFILE},
    {Call::kPeerProcess, EMFILE},   {Call::kPidfdOpen, EMFILE},
    {Call::kPread, EINTR},          {Call::kPread, EIO},
    {Call::kPread, 0, Way::kShort}, {Call::kRead, EINTR},
    {Call::kSend, ETOOMANYREFS},
};

// Of an old kernel, or of today's.
class FailingCalls : public UnderFailures, public ::testing::WithParamInterface<bool> {
 protected:
  FailingCalls() {
    plan_.old_kernel = GetParam();
    before_ = holding_at_rest(process_.pid());
    train_first(process_);
  }

  // How often a job and a look at the status make the call.
  uint64_t count(const FailingCall& failing) override {
    only_count(&plan_);
    EXPECT_TRUE(train(process_, "counted").status.ok());
    EXPECT_NE(process_.ask_status(), "");
    const Status given_back = gives_back(process_.pid(), before_);
    EXPECT_TRUE(given_back.ok()) << given_back.message();
    return plan_.count(failing.maker, failing.call);
  }

  // A job under the failure, and one after it.
  Status holds_under(const FailingCall& failing, uint64_t at, double limit_s) override {
    arm(&plan_, failing, at);
    ELIXIR_RETURN_IF_ERROR(judge(train(process_, "under"), failing, weights_));
    if (process_.ask_status() == "") return error(Code::kInternal, "no answer to 'status'");
    if (!process_.running()) return error(Code::kInternal, "elixird has ended");
    ELIXIR_RETURN_IF_ERROR(gives_back(process_.pid(), before_, limit_s));
    failed_ += plan_.failed;
    if (plan_.failed == 0 && is_steady(failing.call)) {
      return error(Code::kInternal, "no call has failed");
    }
    only_count(&plan_);
    const Training next = train(process_, "next");
    return next.status.ok() ? judge(next, failing, weights_) : next.status;
  }

  bool is_there() override { return process_.running(); }

  PlannedDaemon daemon_;
  CallPlan& plan_ = daemon_.plan();
  DaemonProcess& process_ = daemon_.process();
};

TEST_P(FailingCalls, AreToldOrMadeUpFor) {
  for (const FailingCall& failing : with_both_sides(kWhileItServes)) {
    expect_holds(failing);
    ASSERT_TRUE(process_.running()) << process_.log();
  }
}

// While the system has no room for a connection, somebody waits to be accepted all the time.
TEST_P(FailingCalls, WhoCannotBeAcceptedIsLookedForOnceATick) {
  constexpr double kTickS = 0.1;
  arm(&plan_, {Call::kAccept, ENOMEM}, 1);
  plan_.lasting = true;
  const Result<UniqueFd> waiting = shm::connect_attach(process_.folder().attach_socket());
  ASSERT_TRUE(waiting.ok()) << waiting.status().message();
  ASSERT_TRUE(test::eventually([&] { return plan_.failed >= 1; }));
  const uint32_t failed = plan_.failed;
  const int64_t start_ns = monotonic_ns();
  ASSERT_TRUE(test::eventually([&] { return plan_.failed >= failed + 4; }));
  EXPECT_GE(seconds_since(start_ns), 2 * kTickS);
  only_count(&plan_);
  EXPECT_TRUE(train(process_, "next").status.ok());
}

// Controls of the first test.
TEST_P(FailingCalls, ACallThatWasNeverMadeHasNotFailed) { expect_sees_calls_never_made(); }

TEST_P(FailingCalls, ADescriptorThatStaysOpenIsSeen) { expect_sees_open_descriptors(3); }

INSTANTIATE_TEST_SUITE_P(Kernels, FailingCalls, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Old" : "Today"; });

}  // namespace
}  // namespace elixir::testing
