#include "base/subprocess.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/check.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/interrupt.h"

extern char** environ;

namespace elixir {
namespace {

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& text : strings) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

std::vector<std::string> merged_environment(const std::vector<std::string>& extra) {
  std::vector<std::string> result;
  const auto name_of = [](std::string_view entry) { return entry.substr(0, entry.find('=')); };
  for (char** entry = environ; *entry != nullptr; ++entry) {
    bool replaced = false;
    for (const std::string& other : extra) replaced |= name_of(other) == name_of(*entry);
    if (!replaced) result.emplace_back(*entry);
  }
  result.insert(result.end(), extra.begin(), extra.end());
  return result;
}

// Runs in the child between fork and exec: async-signal-safe calls only.
[[noreturn]] void exec_child(const SpawnOptions& options, char** argv, char** envp, int report_fd,
                             pid_t parent) {
  if (options.new_session) ::setsid();
  if (options.parent_death_signal != 0) {
    ::prctl(PR_SET_PDEATHSIG, options.parent_death_signal);
    ::signal(options.parent_death_signal, SIG_DFL);  // ignored, it would tell nothing
    if (::getppid() != parent) ::_exit(127);         // the parent died before prctl took effect
  }
  if (options.stdout_fd >= 0) ::dup2(options.stdout_fd, STDOUT_FILENO);
  if (options.stderr_fd >= 0) ::dup2(options.stderr_fd, STDERR_FILENO);
  // Also descriptors that came to us from our own parent: a daemon must not keep someone's pipe.
  ::close_range(STDERR_FILENO + 1, ~0u, CLOSE_RANGE_CLOEXEC);
  if (options.kept_fd >= 0) ::fcntl(options.kept_fd, F_SETFD, 0);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execvpe(argv[0], argv, envp);
  const int failure = errno;
  const ssize_t ignored = ::write(report_fd, &failure, sizeof failure);
  (void)ignored;
  ::_exit(127);
}

}  // namespace

Result<pid_t> spawn(const SpawnOptions& options) {
  std::vector<std::string> arguments = options.argv;
  std::vector<std::string> environment = merged_environment(options.extra_environment);
  std::vector<char*> argv = pointers(arguments);
  std::vector<char*> envp = pointers(environment);

  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return errno_status(Code::kInternal, "pipe2");
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return errno_status(Code::kInternal, "fork");
  if (child == 0) exec_child(options, argv.data(), envp.data(), write_end.get(), parent);
  write_end.reset();

  int failure = 0;
  ssize_t got = 0;
  do {
    got = ::read(read_end.get(), &failure, sizeof failure);
  } while (got < 0 && errno == EINTR);
  if (got == static_cast<ssize_t>(sizeof failure)) {
    ::waitpid(child, nullptr, 0);
    return error(Code::kInvalidArgument, "cannot start '{}': {}", options.argv[0],
                 std::strerror(failure));
  }
  return child;
}

Result<ProgramRun> run_to_end(SpawnOptions options, double limit_s) {
  ELIXIR_CHECK(options.stdout_fd < 0, "standard output is read here");
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return errno_status(Code::kInternal, "a pipe");
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  options.stdout_fd = write_end.get();
  const Result<pid_t> child = spawn(options);
  if (!child.ok()) return child.status();
  write_end.reset();
  ProgramRun run;
  const auto end = [&](int signal) {
    if (signal != 0) ::kill(*child, signal);
    int status = 0;
    while (::waitpid(*child, &status, 0) < 0 && errno == EINTR) {
    }
    run.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  };
  const int64_t start_ns = monotonic_ns();
  try {
    while (!run.timed_out) {
      pollfd ready{.fd = read_end.get(), .events = POLLIN, .revents = 0};
      if (::poll(&ready, 1, kInterruptRoundMs) > 0) {
        char piece[1 << 12];
        const ssize_t bytes = ::read(read_end.get(), piece, sizeof piece);
        if (bytes == 0) break;
        if (bytes > 0) run.output.append(piece, static_cast<size_t>(bytes));
      }
      check_interrupt();
      run.timed_out = seconds_since(start_ns) > limit_s;
    }
  } catch (...) {
    end(SIGKILL);
    throw;
  }
  end(run.timed_out ? SIGKILL : 0);
  return run;
}

std::string read_all(int fd) {
  std::string text;
  char piece[1 << 16];
  for (;;) {
    const ssize_t bytes = ::read(fd, piece, sizeof piece);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return text;
    text.append(piece, static_cast<size_t>(bytes));
  }
}

std::string program_folder() {
  char path[4096];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path - 1);
  if (length <= 0) return ".";
  const std::string_view view(path, static_cast<size_t>(length));
  return std::string(view.substr(0, view.rfind('/')));
}

std::string installed_program(const std::string& name) {
  const std::string beside = program_folder(), of_library = library_folder();
  for (const std::string& path :
       {fmt::format("{}/{}", beside, name), fmt::format("{}/../bin/{}", beside, name),
        fmt::format("{}/../../bin/{}", of_library, name),
        fmt::format("{}/../bin/{}", of_library, name)}) {
    if (::access(path.c_str(), X_OK) == 0) return path;
  }
  return "";
}

std::string library_folder() {
  Dl_info info{};
  const bool found = ::dladdr(reinterpret_cast<const void*>(&library_folder), &info) != 0;
  // A relative name is what a program was called by.
  if (!found || info.dli_fname == nullptr || info.dli_fname[0] != '/') return program_folder();
  std::error_code failed;
  const auto path = std::filesystem::canonical(info.dli_fname, failed);
  return failed ? program_folder() : path.parent_path().string();
}

}  // namespace elixir
