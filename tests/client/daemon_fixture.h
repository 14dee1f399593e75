#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace elixir::test {

// An elixird of its own in a fresh runtime folder; ELIXIR_RUNTIME_DIR points there while it lives.
// Stopped with SIGTERM and the folder removed at the end.
class DaemonFixture {
 public:
  explicit DaemonFixture(std::vector<std::string> arguments = {"--no-bandwidth-probe"});
  ~DaemonFixture();

  const std::string& folder() const { return folder_; }
  pid_t pid() const { return pid_; }
  void kill_now();  // SIGKILL

  // `elixirctl status --json`.
  std::string status_json() const;

 private:
  std::string folder_;
  pid_t pid_ = -1;
};

}  // namespace elixir::test
