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

// Starts elixird and does not wait until it listens. `output` gets its log; `prefix` is a program
// that becomes elixird, with its arguments, such as prlimit or setpriv.
pid_t start_elixird(const shm::RuntimeFolder& folder, int output,
                    std::vector<std::string> arguments = {}, std::vector<std::string> prefix = {});

// The reply of the elixird in this folder to the frame `request` on its status socket; "" when none
// came. It may still be starting.
std::string ask_status(const shm::RuntimeFolder& folder, const std::string& request = "status");

// A real elixird in a runtime folder of its own (or a given one). The destructor ends it; a
// sanitizer's report in its log is then fatal.
class DaemonProcess {
 public:
  // Returns when elixird listens or has ended.
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
  std::string ask_status(const std::string& request = "status") const {
    return testing::ask_status(folder_, request);
  }

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
