// One call of the system fails in elixird while it saves and loads: whoever asked is told why, or
// notices nothing; training goes on, and no folder says that it is what it is not.

#include <gtest/gtest.h>

#include <cerrno>

#include "tests/failing_calls/keeping.h"

namespace elixir::testing {
namespace {

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

class FailingCallsOfFolders : public KeepsUnderFailures {
 protected:
  FailingCallsOfFolders() {
    count({Call::kNone});
    before_ = holding_at_rest(process_.pid());
  }
  CallPlan& plan() override { return daemon_.plan(); }
  DaemonProcess& daemon() override { return process_; }
  pid_t under_test() override { return process_.pid(); }
  bool is_there() override { return process_.running(); }

  PlannedDaemon daemon_;
  DaemonProcess& process_ = daemon_.process();
};

TEST_F(FailingCallsOfFolders, AreToldOrMadeUpForAndTrainingGoesOn) {
  for (const FailingCall& failing : kWhileItSaves) {
    untold_ = 0;
    EXPECT_GT(expect_holds(failing), 0u) << describe(failing, 0);
    if (failing.failure == EIO || failing.failure == ENOSPC) {
      EXPECT_LE(untold_, most_untold(failing.call)) << describe(failing, 0);
    }
    ASSERT_TRUE(process_.running()) << process_.log();
  }
}

}  // namespace
}  // namespace elixir::testing
