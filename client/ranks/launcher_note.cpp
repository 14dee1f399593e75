#include "client/ranks/launcher_note.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "base/check.h"

namespace elixir {

Result<NotePipe> make_note_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return errno_status(Code::kInternal, "pipe2");
  return NotePipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::string note_variable(int write_end) {
  struct stat about {};
  ELIXIR_CHECK(::fstat(write_end, &about) == 0, "{} is not a descriptor", write_end);
  return fmt::format("{}={}:{}:{}", kLauncherNote, ::getpid(), write_end, about.st_ino);
}

LauncherNote launcher_note() {
  const char* const told = std::getenv(kLauncherNote);
  int pid = 0, fd = -1;
  unsigned long long inode = 0;
  if (told == nullptr || std::sscanf(told, "%d:%d:%llu", &pid, &fd, &inode) != 3 || pid <= 0) {
    return {};
  }
  LauncherNote note{.launcher = pid};
  struct stat about {};
  const bool is_pipe = fd > STDERR_FILENO && ::fstat(fd, &about) == 0 && S_ISFIFO(about.st_mode) &&
                       about.st_ino == inode;
  if (is_pipe) note.fd = fd;
  return note;
}

}  // namespace elixir
