#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "tests/daemon/daemon_process.h"
#include "tests/failing_calls/failing_calls.h"

namespace elixir::testing {

struct FailingCall {
  Call call;
  int failure = 0;
  Way way = Way::kError;
  Maker maker = Maker::kElixir;
};

// "memfd_create number 3: Too many open files"
std::string describe(const FailingCall& failing, uint64_t at);

// Whether the caller repeats the failed call silently.
bool passes_by_itself(const FailingCall& failing);

// Whether the number of these calls is equal in each run. The number of polls depends on the
// machine.
bool is_steady(Call call);

// Counts from now on, and nothing fails.
void only_count(CallPlan* plan);
// From now on the `at`-th call fails, once.
void arm(CallPlan* plan, const FailingCall& failing, uint64_t at);

// The numbers of the calls that fail, one at a time. These are all of `made`, or as many as a test
// has time for: the first ones, and others evenly up to the last. With ELIXIR_EVERY_CASE: all.
std::vector<uint64_t> chosen(uint64_t made);

// A plan in a file, and an elixird that has the library preloaded and reads the plan.
class PlannedDaemon {
 public:
  // Fails the `at`-th call of its start; 0: none.
  explicit PlannedDaemon(const FailingCall& failing = {Call::kNone}, uint64_t at = 0);
  ~PlannedDaemon();
  CallPlan& plan() { return *plan_; }
  DaemonProcess& process() { return *process_; }

 private:
  TemporaryFolder folder_;
  CallPlan* plan_;
  std::unique_ptr<DaemonProcess> process_;
};

// Checks the text of a status that is not ok: it must say why, and how to fix it.
Status judge_reason(const Status& status, const FailingCall& failing);

// System resources that a process holds.
struct Holding {
  size_t descriptors = 0, memfds = 0;
};
Holding holding(pid_t pid);
// The resources, once they are unchanged for half a second. By then the client that asked whether
// elixird listens is gone.
Holding holding_at_rest(pid_t pid);
// Waits until the process holds no more than `before`. An error says what is left.
Status gives_back(pid_t pid, const Holding& before, double limit_s);

}  // namespace elixir::testing
