#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "shm/runtime_folder.h"
#include "tests/support/patience.h"
#include "tests/support/temporary_folder.h"

namespace elixir::testing {

using elixir::TemporaryFolder;

// A real elixird in a runtime folder of its own (or a given one). The destructor ends it; a
// sanitizer's report in its log is then fatal.
class DaemonProcess {
 public:
  // Returns when elixird listens or has ended. `prefix` is a program that becomes elixird, with its
  // arguments, such as prlimit or setpriv.
  explicit DaemonProcess(std::vector<std::string> arguments = {},
                         const std::string& runtime_dir = "", std::vector<std::string> prefix = {});
  ~DaemonProcess();
  DaemonProcess(const DaemonProcess&) = delete;

  const shm::RuntimeFolder& folder() const { return folder_; }
  pid_t pid() const { return pid_; }
  void signal(int number) const;
  bool running();
  // The exit code (128 + signal when killed); -1 when it still runs after `limit_s`.
  int wait(double limit_s = test::kPatienceS);
  // The log so far.
  std::string log() const;
  // The reply to the frame `request` on the status socket; "" when none came.
  std::string ask_status(const std::string& request = "status") const;

 private:
  TemporaryFolder home_;
  shm::RuntimeFolder folder_;
  std::string log_path_;
  pid_t pid_ = -1;
  int exit_code_ = -1;
};

// The number of descriptors that a process has open, such as sockets and memfds.
size_t open_descriptors(pid_t pid);

// The number of Elixir's memfds in the process's address space.
size_t mapped_memfds(pid_t pid);

// Bytes of the process's memory that are locked, so that they are never swapped out.
uint64_t locked_bytes(pid_t pid);
// A field of /proc/PID/status, in bytes.
uint64_t memory_bytes(pid_t pid, const std::string& field);

// test::eventually(), for the tests of this folder.
bool becomes_true(const std::function<bool()>& condition);

}  // namespace elixir::testing
