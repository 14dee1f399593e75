// One call of the system fails in a trainer: its session says why, or goes on. Then the process
// holds what it held before, and another session trains.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>

#include "tests/failing_calls/keeping.h"

namespace elixir::testing {
namespace {

// Beside kOfBothSides. Not threads of libzmq, as while elixird starts.
constexpr FailingCall kInATrainer[] = {
    {Call::kEventfd, EMFILE, Way::kError, Maker::kLibzmq},
    {Call::kFutex, EINTR},
    {Call::kMadvise, EINVAL},
    {Call::kSocket, EMFILE},
};

class FailingCallsOfATrainer : public UnderFailures {
 protected:
  FailingCallsOfATrainer() {
    train_first(daemon_);
    EXPECT_TRUE(train(daemon_, "second").status.ok());
    before_ = holding(::getpid());
  }

  uint64_t count(const FailingCall& failing) override {
    only_count(&plan_);
    EXPECT_TRUE(train(daemon_, "counted").status.ok());
    return plan_.count(failing.maker, failing.call);
  }

  // A session under the failure, and one after it.
  Status holds_under(const FailingCall& failing, uint64_t at, double limit_s) override {
    arm(&plan_, failing, at);
    const Training under = train(daemon_, "under");
    const bool failed = plan_.failed > 0;
    failed_ += plan_.failed;
    only_count(&plan_);
    ELIXIR_RETURN_IF_ERROR(judge(under, failing, weights_));
    if (!failed && is_steady(failing.call)) return error(Code::kInternal, "no call has failed");
    ELIXIR_RETURN_IF_ERROR(gives_back(::getpid(), before_, limit_s));
    const Training next = train(daemon_, "next");
    return next.status.ok() ? judge(next, failing, weights_) : next.status;
  }

  const DaemonProcess daemon_{{"--workers", "1"}};
  CallPlan& plan_ = call_plan();
};

TEST_F(FailingCallsOfATrainer, EndItsSessionWithAReasonOrAreMadeUpFor) {
  for (const FailingCall& failing : with_both_sides(kInATrainer)) {
    EXPECT_GT(expect_holds(failing), 0u) << describe(failing, 0);
  }
}

// Controls of the test above.
TEST_F(FailingCallsOfATrainer, ACallThatWasNeverMadeHasNotFailed) {
  expect_sees_calls_never_made();
}

TEST_F(FailingCallsOfATrainer, ADescriptorThatStaysOpenIsSeen) { expect_sees_open_descriptors(1); }

// While it asks for a save and a load.
constexpr FailingCall kWhileItKeeps[] = {
    {Call::kAddSeals, EPERM}, {Call::kMemfdCreate, EMFILE},   {Call::kMemfdCreate, ENOMEM},
    {Call::kSend, EINTR},     {Call::kSend, ENOBUFS},         {Call::kWrite, EINTR},
    {Call::kWrite, ENOMEM},   {Call::kWrite, 0, Way::kShort},
};

class FailingCallsOfKeeping : public KeepsUnderFailures {
 protected:
  FailingCallsOfKeeping() {
    for (int i = 0; i < 2; ++i) count({Call::kNone});
    before_ = holding(::getpid());
  }
  CallPlan& plan() override { return call_plan(); }
  DaemonProcess& daemon() override { return daemon_; }
  pid_t under_test() override { return ::getpid(); }

  DaemonProcess daemon_{{"--workers", "1"}};
};

TEST_F(FailingCallsOfKeeping, AreToldOrMadeUpForAndTrainingGoesOn) {
  for (const FailingCall& failing : kWhileItKeeps) {
    EXPECT_GT(expect_holds(failing), 0u) << describe(failing, 0);
  }
}

}  // namespace
}  // namespace elixir::testing
