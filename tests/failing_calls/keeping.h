#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/failing_calls/under_failures.h"

namespace elixir::testing {

// What came of a job of one rank that saves after each of two steps, the second in the place of the
// first, and loads that again.
struct Kept {
  Status trained;
  Status saved[2], loaded;
  std::vector<float> weights, read;  // after the steps, after loading
  double seconds = 0;
};
// `before_saves`: once the first step is made. What is not asked for, since something before it
// failed, is ok.
Kept keep(const DaemonProcess& daemon, const std::string& job, const std::string& folder,
          const std::function<void()>& before_saves);

// What makes and reads a checkpoint, beside what calls of both sides it needs.
class KeepsUnderFailures : public UnderFailures {
 protected:
  virtual CallPlan& plan() = 0;
  virtual DaemonProcess& daemon() = 0;
  // The one whose calls fail.
  virtual pid_t under_test() = 0;

  uint64_t count(const FailingCall& failing) override;
  Status holds_under(const FailingCall& failing, uint64_t at, double limit_s) override;

  uint64_t untold_ = 0;  // calls that failed, and every status was ok

 private:
  Kept keep_undisturbed(const std::string& folder);
  Status judge_kept(const Kept& kept, const FailingCall& failing, const std::string& folder) const;
};

}  // namespace elixir::testing
