#include "base/inherited.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/subprocess.h"

namespace elixir {
namespace {

// What a child of this process finds, as its exit code.
template <typename Function>
int exit_code_in_child(Function&& function) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(function());
  int state = 0;
  ::waitpid(child, &state, 0);
  return WIFEXITED(state) ? WEXITSTATUS(state) : -1;
}

bool is_dev_null(int fd) {
  struct stat one {};
  struct stat null {};
  return ::fstat(fd, &one) == 0 && ::stat("/dev/null", &null) == 0 && one.st_rdev == null.st_rdev;
}

TEST(Inherited, EveryClosedStandardDescriptorIsOpenedOnDevNull) {
  for (int closed = 0; closed < 8; ++closed) {
    const int code = exit_code_in_child([closed] {
      const int file = ::open("/", O_RDONLY);
      for (int fd = 0; fd < 3; ++fd) {
        ::dup2(file, fd);
        if ((closed >> fd & 1) != 0) ::close(fd);
      }
      settle_inherited();
      for (int fd = 0; fd < 3; ++fd) {
        if (is_dev_null(fd) != ((closed >> fd & 1) != 0)) return 1;
        if ((::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0) return 2;
      }
      const int next = ::dup(file);  // no other descriptor was taken
      return next == file + 1 || next == 3 ? 0 : 3;
    });
    EXPECT_EQ(code, 0) << "closed: " << closed;
  }
}

TEST(Inherited, IgnoredSignalsAreLeftOut) {
  const int code = exit_code_in_child([] {
    ::signal(SIGHUP, SIG_IGN);
    ::signal(SIGCHLD, SIG_IGN);
    settle_inherited();
    const sigset_t heard = not_ignored({SIGHUP, SIGTERM, SIGCHLD});
    if (!is_ignored(SIGHUP) || sigismember(&heard, SIGHUP) == 1) return 1;
    if (is_ignored(SIGTERM) || sigismember(&heard, SIGTERM) != 1) return 2;
    return is_ignored(SIGCHLD) || sigismember(&heard, SIGCHLD) != 1 ? 3 : 0;
  });
  EXPECT_EQ(code, 0);
}

// 0: SIGHUP and SIGPIPE are ignored by the program, and the signal of its parent's death is not.
TEST(Inherited, AStartedProgramIgnoresWhatItsStarterIgnores) {
  const int code = exit_code_in_child([] {
    for (const int signal : {SIGHUP, SIGPIPE, SIGTERM}) ::signal(signal, SIG_IGN);
    const Result<pid_t> child =
        spawn({.argv = {"sh", "-c",
                        "mask=$(sed -n 's/^SigIgn:.//p' /proc/$$/status); mask=$((0x$mask)); "
                        "[ $((mask >> 0 & 1)) = 1 ] && [ $((mask >> 12 & 1)) = 1 ] && "
                        "[ $((mask >> 14 & 1)) = 0 ]"},
               .extra_environment = {},
               .parent_death_signal = SIGTERM});
    int state = 0;
    if (!child.ok() || ::waitpid(*child, &state, 0) != *child) return 2;
    return WIFEXITED(state) ? WEXITSTATUS(state) : 3;
  });
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace elixir
