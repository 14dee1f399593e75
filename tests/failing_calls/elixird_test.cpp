// One call of the system fails in elixird while it serves a job, or while it saves and loads for
// one: whoever asked is told why, or notices nothing. Then elixird holds what it held before, and
// serves the next job; no folder says that it is what it is not.

#include <cerrno>

#include "base/clock.h"
#include "shm/attach_socket.h"
#include "tests/failing_calls/under_failures.h"
#include "tests/support/matchers.h"
#include "tests/support/patience.h"

namespace elixir::testing {
namespace {

// Whichever kind of job.
template <typename Jobs>
class OfElixird : public Jobs {
 protected:
  CallPlan& plan() override { return daemon_.plan(); }
  DaemonProcess& daemon() override { return daemon_.process(); }
  pid_t under_test() override { return daemon().pid(); }

 private:
  PlannedDaemon daemon_;
};

// Beside those of both sides.
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
class FailingCalls : public OfElixird<TrainsUnderFailures>,
                     public ::testing::WithParamInterface<bool> {
 protected:
  FailingCalls() {
    plan().old_kernel = GetParam();
    train_first();
  }
};

TEST_P(FailingCalls, AreToldOrMadeUpFor) {
  for (const FailingCall& failing : with_both_sides(kWhileItServes)) {
    expect_holds(failing);
    ASSERT_TRUE(daemon().running()) << daemon().log();
  }
}

// While the system has no room for a connection, somebody waits to be accepted all the time.
TEST_P(FailingCalls, WhoCannotBeAcceptedIsLookedForOnceATick) {
  constexpr double kTickS = 0.1;
  arm(&plan(), {Call::kAccept, ENOMEM}, 1);
  plan().lasting = true;
  const UniqueFd waiting = must(shm::connect_attach(daemon().folder().attach_socket()));
  ASSERT_TRUE(test::eventually([&] { return plan().failed >= 1; }));
  const uint32_t failed = plan().failed;
  const int64_t start_ns = monotonic_ns();
  ASSERT_TRUE(test::eventually([&] { return plan().failed >= failed + 4; }));
  EXPECT_GE(seconds_since(start_ns), 2 * kTickS);
  only_count(&plan());
  EXPECT_TRUE(run_job("next", {Call::kNone}, [] {}).ok());
}

// Controls of the first test.
TEST_P(FailingCalls, ACallThatWasNeverMadeHasNotFailed) { expect_sees_calls_never_made(); }

TEST_P(FailingCalls, ADescriptorThatStaysOpenIsSeen) { expect_sees_open_descriptors(3); }

INSTANTIATE_TEST_SUITE_P(Kernels, FailingCalls, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Old" : "Today"; });

constexpr FailingCall kWhileItSaves[] = {
    {Call::kDuplicate, EMFILE},
    {Call::kFallocate, EINTR},
    {Call::kFallocate, ENOSPC},
    {Call::kFallocate, EOPNOTSUPP},
    {Call::kFsync, EIO},
    {Call::kFsync, ENOSPC},
    {Call::kMkdir, EDQUOT},
    {Call::kOpen, EMFILE},
    {Call::kPread, EINTR},
    {Call::kPread, EIO},
    {Call::kPread, 0, Way::kShort},
    {Call::kPwrite, EINTR},
    {Call::kPwrite, ENOSPC},
    {Call::kPwrite, EIO},
    {Call::kPwrite, 0, Way::kShort},
    {Call::kRename, EINVAL},
    {Call::kRename, EIO},
    {Call::kThread, EAGAIN},
    {Call::kUnlink, EIO},
};

// Bytes that are not on the disk, or not those that are read, are told of each time. Not so what
// keeps an old checkpoint where it is, which is a line of the log at most: of two saves that look
// for one to remove, three reads of manifests, and of the one that goes its rename, fsync, unlinks.
uint64_t most_untold(Call call) {
  if (call == Call::kUnlink) return UINT64_MAX;
  if (call == Call::kPread) return 3;
  return call == Call::kFsync || call == Call::kRename ? 1 : 0;
}

class FailingCallsOfFolders : public OfElixird<KeepsUnderFailures> {};

TEST_F(FailingCallsOfFolders, AreToldOrMadeUpForAndTrainingGoesOn) {
  train_first();
  for (const FailingCall& failing : kWhileItSaves) {
    untold_ = 0;
    EXPECT_GT(expect_holds(failing), 0u) << describe(failing, 0);
    if (failing.failure == EIO || failing.failure == ENOSPC) {
      EXPECT_LE(untold_, most_untold(failing.call)) << describe(failing, 0);
    }
    ASSERT_TRUE(daemon().running()) << daemon().log();
  }
}

}  // namespace
}  // namespace elixir::testing
