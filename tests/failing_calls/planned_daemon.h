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

// The call is to be made again, and nobody hears of it.
bool passes_by_itself(const FailingCall& failing);

// Whether as many are made each time. How often something is looked at depends on the machine.
bool is_steady(Call call);

// Counts from now on, and nothing fails.
void only_count(CallPlan* plan);
// From now on the `at`-th call fails, once.
void arm(CallPlan* plan, const FailingCall& failing, uint64_t at);

// Which of `made` calls fail, one at a time: all, or as many as a test has time for, the first ones
// and others evenly between them and the last. ELIXIR_EVERY_CASE: all.
std::vector<uint64_t> chosen(uint64_t made);

// A plan in a file, and an elixird that has the library preloaded and reads it there.
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

// Of a status that is not ok: it says why, and what mends it.
Status judge_reason(const Status& status, const FailingCall& failing);

// What a process holds of the system.
struct Holding {
  size_t descriptors = 0, memfds = 0;
};
Holding holding(pid_t pid);
// When it has been the same for half a second: who looked whether elixird listens is gone.
Holding holding_at_rest(pid_t pid);
// Waits until the process holds no more than that. An error says what is left.
Status gives_back(pid_t pid, const Holding& before, double limit_s);

}  // namespace elixir::testing
