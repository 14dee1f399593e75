// One call of the system fails in elixird: a trainer is told why, or notices nothing. Then elixird
// holds what it held before, and serves the next job.

#include <gtest/gtest.h>

#include <cerrno>

#include "base/clock.h"
#include "shm/attach_socket.h"
#include "tests/failing_calls/training.h"
#include "tests/support/patience.h"

namespace elixir::testing {
namespace {

// What the system answers in truth; of libzmq's calls, what it can live with.
constexpr FailingCall kWhileItServes[] = {
    {Call::kAccept, EMFILE},
    {Call::kAccept, EINTR},
    {Call::kAccept, ENOMEM},
    {Call::kAccept, ECONNABORTED},
    {Call::kAddSeals, EPERM},
    {Call::kEpollControl, ENOSPC, Way::kError, Maker::kLibzmq},
    {Call::kEpollWait, EINTR, Way::kError, Maker::kLibzmq},
    {Call::kFallocate, ENOSPC},
    {Call::kFallocate, EINTR},
    {Call::kFtruncate, ENOSPC},
    {Call::kFtruncate, EINTR},
    {Call::kMadvise, ENOMEM},
    {Call::kMadvise, EINTR},
    {Call::kMemfdCreate, EMFILE},
    {Call::kMemfdCreate, ENOMEM},
    {Call::kMmap, ENOMEM},
    {Call::kOpen, EMFILE},
    {Call::kPeerProcess, EMFILE},
    {Call::kPidfdOpen, EMFILE},
    {Call::kPoll, EINTR},
    {Call::kPoll, ENOMEM},
    {Call::kPoll, EINTR, Way::kError, Maker::kLibzmq},
    {Call::kPread, EINTR},
    {Call::kPread, EIO},
    {Call::kPread, 0, Way::kShort},
    {Call::kRead, EINTR},
    {Call::kReceive, EINTR},
    {Call::kReceive, EAGAIN},
    {Call::kReceive, ENOMEM},
    {Call::kReceive, 0, Way::kWithoutDescriptors},
    {Call::kReceive, 0, Way::kShort},
    {Call::kSend, EINTR},
    {Call::kSend, EAGAIN},
    {Call::kSend, ENOBUFS},
    {Call::kSend, ETOOMANYREFS},
    {Call::kThread, EAGAIN},
};

// Of an old kernel, or of today's.
class FailingCalls : public ::testing::TestWithParam<bool> {
 protected:
  FailingCalls() {
    plan_.old_kernel = GetParam();
    before_ = holding(process_.pid());
    const Training first = train(process_, "first");
    EXPECT_TRUE(first.status.ok()) << first.status.message();
    weights_ = first.weights;
  }

  // How often a job and a look at the status make the call.
  uint64_t count(const FailingCall& failing) {
    only_count(&plan_);
    EXPECT_TRUE(train(process_, "counted").status.ok());
    EXPECT_NE(process_.ask_status(), "");
    const Status given_back = gives_back(process_.pid(), before_);
    EXPECT_TRUE(given_back.ok()) << given_back.message();
    return plan_.count(failing.maker, failing.call);
  }

  // A job under the failure, and one after it.
  Status holds_under(const FailingCall& failing, uint64_t at, double limit_s = 20) {
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

  PlannedDaemon daemon_;
  CallPlan& plan_ = daemon_.plan();
  DaemonProcess& process_ = daemon_.process();
  std::vector<float> weights_;
  Holding before_;
  uint64_t failed_ = 0;  // calls, of one kind
};

TEST_P(FailingCalls, AreToldOrMadeUpFor) {
  for (const FailingCall& failing : kWhileItServes) {
    failed_ = 0;
    const uint64_t made = count(failing);
    for (const uint64_t at : chosen(made)) {
      const Status status = holds_under(failing, at);
      EXPECT_TRUE(status.ok()) << describe(failing, at) << ": " << status.message();
      ASSERT_TRUE(process_.running()) << process_.log();
    }
    EXPECT_TRUE(made == 0 || failed_ > 0) << describe(failing, 0);
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

// Controls of the first test: it sees when nothing was put to the test, and what is left open.
TEST_P(FailingCalls, ACallThatWasNeverMadeHasNotFailed) {
  const Status status = holds_under({Call::kMemfdCreate, EMFILE}, 1000);
  EXPECT_EQ(status.message(), "no call has failed");
}

TEST_P(FailingCalls, ADescriptorThatStaysOpenIsSeen) {
  const Status status = holds_under({Call::kMemfdCreate, 0, Way::kLeak}, 3, /*limit_s=*/1);
  EXPECT_NE(status.message().find("descriptors and 0 memfds"), std::string::npos)
      << status.message();
}

INSTANTIATE_TEST_SUITE_P(Kernels, FailingCalls, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Old" : "Today"; });

}  // namespace
}  // namespace elixir::testing
