// One call of the system fails in a trainer: its session says why, or goes on. Then the process
// holds what it held before, and another session trains.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>

#include "tests/failing_calls/training.h"

namespace elixir::testing {
namespace {

// Not threads of libzmq, as while elixird starts.
constexpr FailingCall kInATrainer[] = {
    {Call::kEpollWait, EINTR, Way::kError, Maker::kLibzmq},
    {Call::kEventfd, EMFILE, Way::kError, Maker::kLibzmq},
    {Call::kFutex, EINTR},
    {Call::kMadvise, EINVAL},
    {Call::kMemfdCreate, EMFILE},
    {Call::kMmap, ENOMEM},
    {Call::kPoll, EINTR},
    {Call::kPoll, ENOMEM},
    {Call::kPoll, EINTR, Way::kError, Maker::kLibzmq},
    {Call::kReceive, EINTR},
    {Call::kReceive, EAGAIN},
    {Call::kReceive, ENOMEM},
    {Call::kReceive, 0, Way::kWithoutDescriptors},
    {Call::kReceive, 0, Way::kShort},
    {Call::kSend, EINTR},
    {Call::kSend, EAGAIN},
    {Call::kSend, ENOBUFS},
    {Call::kSocket, EMFILE},
    {Call::kThread, EAGAIN},
};

class FailingCallsOfATrainer : public ::testing::Test {
 protected:
  FailingCallsOfATrainer() {
    const Training first = train(daemon_, "first");
    EXPECT_TRUE(first.status.ok()) << first.status.message();
    weights_ = first.weights;
    EXPECT_TRUE(train(daemon_, "second").status.ok());
    before_ = holding(::getpid());
  }

  uint64_t count(const FailingCall& failing) {
    only_count(&plan_);
    EXPECT_TRUE(train(daemon_, "counted").status.ok());
    return plan_.count(failing.maker, failing.call);
  }

  // A session under the failure, and one after it.
  Status holds_under(const FailingCall& failing, uint64_t at, double limit_s = 20) {
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
  std::vector<float> weights_;
  Holding before_;
  uint64_t failed_ = 0;  // calls, of one kind
};

TEST_F(FailingCallsOfATrainer, EndItsSessionWithAReasonOrAreMadeUpFor) {
  for (const FailingCall& failing : kInATrainer) {
    failed_ = 0;
    for (const uint64_t at : chosen(count(failing))) {
      const Status status = holds_under(failing, at);
      EXPECT_TRUE(status.ok()) << describe(failing, at) << ": " << status.message();
    }
    EXPECT_GT(failed_, 0u) << describe(failing, 0);
  }
}

// Controls of the test above.
TEST_F(FailingCallsOfATrainer, ACallThatWasNeverMadeHasNotFailed) {
  const Status status = holds_under({Call::kMemfdCreate, EMFILE}, 1000);
  EXPECT_EQ(status.message(), "no call has failed");
}

TEST_F(FailingCallsOfATrainer, ADescriptorThatStaysOpenIsSeen) {
  const Status status = holds_under({Call::kMemfdCreate, 0, Way::kLeak}, 1, /*limit_s=*/1);
  EXPECT_NE(status.message().find("descriptors and 0 memfds"), std::string::npos)
      << status.message();
}

}  // namespace
}  // namespace elixir::testing
