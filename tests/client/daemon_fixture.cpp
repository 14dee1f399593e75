#include "tests/client/daemon_fixture.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>

#include "base/check.h"
#include "shm/find_daemon.h"

namespace elixir::test {

DaemonFixture::DaemonFixture(std::vector<std::string> arguments) {
  char name[] = "/tmp/elixir-test-XXXXXX";
  ELIXIR_CHECK(::mkdtemp(name) != nullptr, "mkdtemp");
  folder_ = name;
  ::setenv("ELIXIR_RUNTIME_DIR", name, 1);
  ::setenv("ELIXIRD", ELIXIR_BIN_DIR "/elixird", 1);
  shm::DaemonStart start;
  start.extra_arguments = std::move(arguments);
  start.keep_with_parent = true;
  const auto daemon = shm::find_or_start_daemon(shm::RuntimeFolder{folder_}, start);
  ELIXIR_CHECK(daemon.ok(), "{}", daemon.status().message());
  pid_ = daemon->pid;
}

DaemonFixture::~DaemonFixture() {
  if (pid_ > 0) {
    ::kill(pid_, SIGTERM);
    ::waitpid(pid_, nullptr, 0);
  }
  std::filesystem::remove_all(folder_);
}

void DaemonFixture::kill_now() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

std::string DaemonFixture::status_json() const {
  const std::string command = ELIXIR_BIN_DIR "/elixirctl status --json --runtime-dir " + folder_;
  FILE* pipe = ::popen(command.c_str(), "r");
  ELIXIR_CHECK(pipe != nullptr, "popen");
  std::string text;
  std::array<char, 4096> buffer;
  for (size_t got; (got = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    text.append(buffer.data(), got);
  }
  ::pclose(pipe);
  return text;
}

}  // namespace elixir::test
