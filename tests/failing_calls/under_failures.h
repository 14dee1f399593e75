#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tests/failing_calls/planned_daemon.h"
#include "tests/support/temporary_folder.h"

namespace elixir::testing {

// What the system answers in truth, to elixird and a trainer alike; of libzmq's calls, what it can
// live with.
std::vector<FailingCall> with_both_sides(std::span<const FailingCall> of_one);

// A process under failing calls, elixird's or a trainer's, and what must hold of it.
class UnderFailures : public ::testing::Test {
 protected:
  virtual DaemonProcess& daemon() = 0;
  // Of the process whose calls fail.
  virtual CallPlan& plan() = 0;
  virtual pid_t under_test() = 0;

  // A job does as it should or says why not, soon. It tells from where on its calls count. The
  // first one's weights are those of all.
  virtual Status run_job(const std::string& job, const FailingCall& failing,
                         const std::function<void()>& from_here) = 0;

  // The first job, and what the process holds from then on.
  void train_first();

  // Each of the calls fails in turn, for as long as there is an elixird. How often the call is
  // made.
  uint64_t expect_holds(const FailingCall& failing);

  // Controls: that nothing was put to the test is seen, and what is left open.
  void expect_sees_calls_never_made();
  void expect_sees_open_descriptors(uint64_t at);

  std::vector<float> weights_;
  bool is_steady_ = true;  // the job makes as many calls each time
  uint64_t failed_ = 0;    // calls, of one kind

 private:
  bool is_trainer();
  // How often a job makes the call where nothing fails.
  uint64_t count(const FailingCall& failing);
  // A job under the failure, and one after it: the process holds what it held before.
  Status holds_under(const FailingCall& failing, uint64_t at, double limit_s);

  Holding before_;
};

// A job of one rank makes a step.
class TrainsUnderFailures : public UnderFailures {
 protected:
  Status run_job(const std::string& job, const FailingCall& failing,
                 const std::function<void()>& from_here) override;
};

// A job of one rank saves after each of two steps, the second in the place of the first, and loads
// that again. Its calls count once the first step is made.
class KeepsUnderFailures : public UnderFailures {
 protected:
  KeepsUnderFailures() { is_steady_ = false; }
  Status run_job(const std::string& job, const FailingCall& failing,
                 const std::function<void()>& from_here) override;

  uint64_t untold_ = 0;  // calls that failed, and every status was ok

 private:
  Status judge_folder(const FailingCall& failing, bool saved) const;

  std::optional<TemporaryFolder> folder_;
};

}  // namespace elixir::testing
