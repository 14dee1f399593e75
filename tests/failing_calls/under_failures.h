#pragma once

#include <gtest/gtest.h>

#include <cerrno>
#include <span>
#include <string>
#include <vector>

#include "tests/failing_calls/training.h"

namespace elixir::testing {

// What the system answers in truth, to elixird and a trainer alike; of libzmq's calls, what it can
// live with.
inline constexpr FailingCall kOfBothSides[] = {
    {Call::kEpollWait, EINTR, Way::kError, Maker::kLibzmq},
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
    {Call::kThread, EAGAIN},
};
inline std::vector<FailingCall> with_both_sides(std::span<const FailingCall> of_one) {
  std::vector<FailingCall> all(of_one.begin(), of_one.end());
  all.insert(all.end(), std::begin(kOfBothSides), std::end(kOfBothSides));
  return all;
}

// A process under failing calls, and what must hold of it.
class UnderFailures : public ::testing::Test {
 protected:
  // How often a job makes the call where nothing fails.
  virtual uint64_t count(const FailingCall& failing) = 0;
  // A job under the failure, and one after it: within limit_s the process holds what it held
  // before. Adds to failed_.
  virtual Status holds_under(const FailingCall& failing, uint64_t at, double limit_s) = 0;

  // The process under test.
  virtual bool is_there() { return true; }

  void train_first(const DaemonProcess& daemon) {
    const Training first = train(daemon, "first");
    EXPECT_TRUE(first.status.ok()) << first.status.message();
    weights_ = first.weights;
  }

  // Each of the calls fails in turn, for as long as there is a process. How often the call is made.
  uint64_t expect_holds(const FailingCall& failing) {
    failed_ = 0;
    const uint64_t made = count(failing);
    for (const uint64_t at : chosen(made)) {
      const Status status = holds_under(failing, at, kLimitS);
      EXPECT_TRUE(status.ok()) << describe(failing, at) << ": " << status.message();
      if (!is_there()) break;
    }
    EXPECT_TRUE(made == 0 || failed_ > 0) << describe(failing, 0);
    return made;
  }

  // Controls: that nothing was put to the test is seen, and what is left open.
  void expect_sees_calls_never_made() {
    const Status status = holds_under({Call::kMemfdCreate, EMFILE}, 1000, kLimitS);
    EXPECT_EQ(status.message(), "no call has failed");
  }
  void expect_sees_open_descriptors(uint64_t at) {
    const Status status = holds_under({Call::kMemfdCreate, 0, Way::kLeak}, at, /*limit_s=*/1);
    EXPECT_NE(status.message().find("descriptors and 0 memfds"), std::string::npos)
        << status.message();
  }

  static constexpr double kLimitS = 20;
  std::vector<float> weights_;
  Holding before_;
  uint64_t failed_ = 0;  // calls, of one kind
};

}  // namespace elixir::testing
