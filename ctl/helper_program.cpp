#include "ctl/helper_program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/fd.h"
#include "base/subprocess.h"

namespace elixir::ctl {

namespace {

std::string how_to_get(const std::string& name, const std::string& folder) {
  if (!ELIXIR_WITH_TORCH) {
    return "this build has no LibTorch: build with ELIXIR_WITH_TORCH=ON";
  }
  const std::string build = folder.substr(0, folder.rfind('/'));
  if (::access((build + "/CMakeCache.txt").c_str(), F_OK) == 0) {
    return fmt::format("build it: cmake --build {} --target {}", build, name);
  }
  return fmt::format("install elixirctl and {} into one folder", name);
}

Status ended_by_signal(const std::string& name, int signal) {
  const char* const abbreviation = ::sigabbrev_np(signal);
  const std::string what =
      fmt::format("{} was ended by {}", name,
                  abbreviation == nullptr ? fmt::format("signal {}", signal)
                                          : fmt::format("SIG{}", abbreviation));
  switch (signal) {
    case SIGKILL:
      return error(Code::kResourceExhausted,
                   "{}: the kernel does so if memory is short (dmesg tells): free memory, or raise "
                   "the cgroup's limit",
                   what);
    case SIGABRT:
    case SIGBUS:
    case SIGSEGV:
      return error(Code::kResourceExhausted,
                   "{}: its memory limit is the likely cause: raise ulimit -v, -d and -s", what);
    case SIGXCPU:
      return error(Code::kResourceExhausted, "{}: raise ulimit -t", what);
    default:
      return error(Code::kInternal, "{}", what);
  }
}

}  // namespace

Result<HelperRun> run_helper_program(const std::string& name, std::vector<std::string> arguments,
                                     const std::string& purpose, int stderr_fd) {
  const std::string folder = program_folder();
  const std::string program = folder + "/" + name;
  if (::access(program.c_str(), X_OK) != 0) {
    return error(Code::kUnavailable, "{} is missing: it {}; {}", program, purpose,
                 how_to_get(name, folder));
  }
  arguments.insert(arguments.begin(), program);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return errno_status(Code::kInternal, "a pipe");
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  const Result<pid_t> child = spawn({.argv = std::move(arguments),
                                     .extra_environment = {},
                                     .stdout_fd = write_end.get(),
                                     .stderr_fd = stderr_fd,
                                     .parent_death_signal = SIGTERM});
  if (!child.ok()) return child.status();
  write_end.reset();
  HelperRun run;
  run.output = read_all(read_end.get());
  int status = 0;
  while (::waitpid(*child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status)) return ended_by_signal(name, WTERMSIG(status));
  run.exit_code = WEXITSTATUS(status);
  return run;
}

}  // namespace elixir::ctl
