#include "tests/daemon/daemon_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/check.h"
#include "base/fd.h"
#include "base/subprocess.h"
#include "shm/find_daemon.h"
#include "tests/support/patience.h"

namespace elixir::testing {
namespace {

// In the folder that ELIXIR_BIN_DIR names: tests run where nothing was built, too.
std::string elixird_path() {
  const char* folder = std::getenv("ELIXIR_BIN_DIR");
  return folder == nullptr ? ELIXIRD_PATH : std::string(folder) + "/elixird";
}

}  // namespace

pid_t start_elixird(const shm::RuntimeFolder& folder, int output,
                    std::vector<std::string> arguments, std::vector<std::string> prefix) {
  SpawnOptions options;
  options.argv = std::move(prefix);
  for (const std::string& word : {elixird_path(), std::string("--runtime-dir"), folder.path,
                                  std::string("--no-bandwidth-probe")}) {
    options.argv.push_back(word);
  }
  options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
  options.stdout_fd = output;
  options.stderr_fd = output;
  options.parent_death_signal = SIGKILL;
  const Result<pid_t> child = spawn(options);
  ELIXIR_CHECK(child.ok(), "{}", child.status().message());
  return *child;
}

std::string ask_status(const shm::RuntimeFolder& folder, const std::string& request) {
  void* context = zmq_ctx_new();
  void* socket = zmq_socket(context, ZMQ_DEALER);
  const int linger_ms = 0, timeout_ms = test::kPatienceMs;
  zmq_setsockopt(socket, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
  zmq_setsockopt(socket, ZMQ_RCVTIMEO, &timeout_ms, sizeof timeout_ms);
  zmq_connect(socket, folder.status_endpoint().c_str());
  zmq_send(socket, request.data(), request.size(), 0);
  std::string answer(1 << 20, '\0');
  const int got = zmq_recv(socket, answer.data(), answer.size(), 0);
  answer.resize(got < 0 ? 0 : std::min<size_t>(static_cast<size_t>(got), answer.size()));
  zmq_close(socket);
  zmq_ctx_term(context);
  return answer;
}

DaemonProcess::DaemonProcess(std::vector<std::string> arguments, const std::string& runtime_dir,
                             std::vector<std::string> prefix) {
  folder_.path = runtime_dir.empty() ? home_.path() + "/run" : runtime_dir;
  log_path_ = home_.path() + "/log";
  const UniqueFd output(::open(log_path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  pid_ = start_elixird(folder_, output.get(), std::move(arguments), std::move(prefix));
  const bool listens = becomes_true(
      [this] { return !running() || log().find("event=listening") != std::string::npos; });
  ELIXIR_CHECK(listens, "elixird does not listen: {}", log());
}

DaemonProcess::~DaemonProcess() {
  if (running()) ::kill(pid_, SIGTERM);
  if (wait() < 0) ::kill(pid_, SIGKILL);
  wait();
  // A sanitizer's finding must not go with the log.
  ELIXIR_CHECK(log().find("Sanitizer") == std::string::npos, "elixird's log:\n{}", log());
}

void DaemonProcess::signal(int number) const { ::kill(pid_, number); }

bool DaemonProcess::running() { return wait(0) < 0; }

int DaemonProcess::wait(double limit_s) {
  const auto ended = [this] {
    int state = 0;
    if (exit_code_ < 0 && ::waitpid(pid_, &state, WNOHANG) == pid_) {
      exit_code_ = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
    }
    return exit_code_ >= 0;
  };
  test::eventually(ended, limit_s);
  return exit_code_;
}

std::string DaemonProcess::log() const {
  std::ifstream file(log_path_);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

size_t open_descriptors(pid_t pid) {
  const std::filesystem::directory_iterator folder("/proc/" + std::to_string(pid) + "/fd");
  return static_cast<size_t>(std::distance(begin(folder), end(folder)));
}

size_t mapped_memfds(pid_t pid) {
  std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find("/memfd:elixir-") != std::string::npos;
  }
  return count;
}

uint64_t memory_bytes(pid_t pid, const std::string& field) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  uint64_t kib = 0;
  for (std::string word; file >> word;) {
    if (word == field + ":") file >> kib;
  }
  return kib * 1024;
}

uint64_t locked_bytes(pid_t pid) { return memory_bytes(pid, "VmLck"); }

bool becomes_true(const std::function<bool()>& condition) { return test::eventually(condition); }

}  // namespace elixir::testing
