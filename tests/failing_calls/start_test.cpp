// One call of the system fails while elixird starts: it says why and ends with a code of
// docs/errors.md, or it serves.

#include <signal.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "tests/client/session_job.h"
#include "tests/failing_calls/planned_daemon.h"
#include "tests/support/matchers.h"

namespace elixir::testing {
namespace {

// Not threads of libzmq, which ends the process: elixird looks first whether there can be so many
// (base/spare_threads.h).
constexpr FailingCall kWhileItStarts[] = {
    {Call::kEpollControl, ENOSPC, Way::kError, Maker::kLibzmq},
    {Call::kEpollWait, EINTR, Way::kError, Maker::kLibzmq},
    {Call::kEventfd, EMFILE},
    {Call::kEventfd, EMFILE, Way::kError, Maker::kLibzmq},
    {Call::kOpen, EMFILE},
    {Call::kPoll, EINTR, Way::kError, Maker::kLibzmq},
    {Call::kRead, EINTR},
    {Call::kRead, EIO},
    {Call::kSocket, EMFILE},
    {Call::kThread, EAGAIN},
};

// It has ended by itself.
void expect_reason(DaemonProcess& process, const FailingCall& failing) {
  EXPECT_FALSE(passes_by_itself(failing)) << process.log();
  const int code = process.wait();
  EXPECT_GT(code, 0);
  EXPECT_STRNE(code_name(static_cast<Code>(code)), "unknown") << code;
  const std::string log = process.log();
  EXPECT_NE(log.find("elixird: "), std::string::npos) << log;
  EXPECT_NE(log.find(std::strerror(failing.failure)), std::string::npos) << log;
  if (failing.failure == EMFILE) {
    EXPECT_NE(log.find("ulimit -n"), std::string::npos) << log;
  }
  for (const std::string& socket :
       {process.folder().attach_socket(), process.folder().control_socket(),
        process.folder().status_socket()}) {
    EXPECT_FALSE(std::filesystem::exists(socket)) << socket;
  }
}

void expect_service(DaemonProcess& process) {
  must(step(*must(begin_job(process, "job")), 1));
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait(), 0) << process.log();
}

TEST(FailingCallsOfTheStart, EndItWithAReasonOrAreMadeUpFor) {
  PlannedDaemon counted;
  for (const FailingCall& failing : kWhileItStarts) {
    for (const uint64_t at : chosen(counted.plan().count(failing.maker, failing.call))) {
      SCOPED_TRACE(describe(failing, at));
      PlannedDaemon daemon(failing, at);
      if (is_steady(failing.call)) {
        EXPECT_EQ(daemon.plan().failed, 1u);
      }
      if (daemon.process().running()) {
        expect_service(daemon.process());
      } else {
        expect_reason(daemon.process(), failing);
      }
    }
  }
}

}  // namespace
}  // namespace elixir::testing
