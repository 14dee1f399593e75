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

// Adds to `of_one` the failures for elixird and trainers alike. The system really returns these
// errors. For libzmq's calls, they are errors that libzmq survives.
std::vector<FailingCall> with_both_sides(std::span<const FailingCall> of_one);

// A process under failing calls, elixird or a trainer, and the checks that it must pass.
class UnderFailures : public ::testing::Test {
 protected:
  virtual DaemonProcess& daemon() = 0;
  // The plan of the process whose calls fail.
  virtual CallPlan& plan() = 0;
  virtual pid_t under_test() = 0;

  // Runs a job, which must work or return an error with the reason, soon. It calls `from_here` when
  // its calls begin to count. All jobs must reach the first job's weights.
  virtual Status run_job(const std::string& job, const FailingCall& failing,
                         const std::function<void()>& from_here) = 0;

  // Runs the first job and notes the resources that the process holds from then on.
  void train_first();

  // Lets each of the calls fail in turn, as long as elixird runs. Returns how often a job makes the
  // call.
  uint64_t expect_holds(const FailingCall& failing);

  // Negative controls: the checks notice calls that are never made, and descriptors that are left
  // open.
  void expect_sees_calls_never_made();
  void expect_sees_open_descriptors(uint64_t at);

  std::vector<float> weights_;
  bool is_steady_ = true;  // each job makes the same number of calls
  uint64_t failed_ = 0;    // failed calls of one kind

 private:
  bool is_trainer();
  // How often a job makes the call if nothing fails.
  uint64_t count(const FailingCall& failing);
  // Runs a job under the failure and one after it. The process must hold what it held before.
  Status holds_under(const FailingCall& failing, uint64_t at, double limit_s);

  Holding before_;
};

// A job of one rank makes a step.
class TrainsUnderFailures : public UnderFailures {
 protected:
  Status run_job(const std::string& job, const FailingCall& failing,
                 const std::function<void()>& from_here) override;
};

// A job of one rank saves after each of two steps. The second checkpoint replaces the first, and
// the job loads it. Calls count once the first step is made.
class KeepsUnderFailures : public UnderFailures {
 protected:
  KeepsUnderFailures() { is_steady_ = false; }
  Status run_job(const std::string& job, const FailingCall& failing,
                 const std::function<void()>& from_here) override;

  uint64_t untold_ = 0;  // failed calls although every status was ok

 private:
  Status judge_folder(const FailingCall& failing, bool saved) const;

  std::optional<TemporaryFolder> folder_;
};

}  // namespace elixir::testing
