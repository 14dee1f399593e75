// One call of the system fails in a trainer: its session says why, or goes on. Then the process
// holds what it held before, and another session trains.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>

#include "tests/failing_calls/under_failures.h"

namespace elixir::testing {
namespace {

// Whichever kind of job.
template <typename Jobs>
class OfATrainer : public Jobs {
 protected:
  OfATrainer() { this->train_first(); }
  CallPlan& plan() override { return call_plan(); }
  DaemonProcess& daemon() override { return daemon_; }
  pid_t under_test() override { return ::getpid(); }

  void expect_all_hold(std::span<const FailingCall> all) {
    for (const FailingCall& failing : all) {
      EXPECT_GT(this->expect_holds(failing), 0u) << describe(failing, 0);
    }
  }

 private:
  DaemonProcess daemon_{{"--workers", "1"}};
};

// Beside those of both sides. Not threads of libzmq, as while elixird starts.
constexpr FailingCall kInATrainer[] = {
    {Call::kEventfd, EMFILE, Way::kError, Maker::kLibzmq},
    {Call::kFutex, EINTR},
    {Call::kMadvise, EINVAL},
    {Call::kSocket, EMFILE},
};

using FailingCallsOfATrainer = OfATrainer<TrainsUnderFailures>;

TEST_F(FailingCallsOfATrainer, EndItsSessionWithAReasonOrAreMadeUpFor) {
  expect_all_hold(with_both_sides(kInATrainer));
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

using FailingCallsOfKeeping = OfATrainer<KeepsUnderFailures>;

TEST_F(FailingCallsOfKeeping, AreToldOrMadeUpForAndTrainingGoesOn) {
  expect_all_hold(kWhileItKeeps);
}

}  // namespace
}  // namespace elixir::testing
