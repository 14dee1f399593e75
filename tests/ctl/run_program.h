#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/subprocess.h"
#include "tests/support/temporary_folder.h"

namespace elixir::ctl {

struct Ended {
  int code = -1;  // the exit code, or 128 + the signal that ended it
  std::string out, err;
};

// Runs a program to its end. `environment` has entries "NAME=value" that override this process's.
inline Ended run_program(std::vector<std::string> argv, std::vector<std::string> environment = {}) {
  const TemporaryFolder outputs;
  const auto file = [&](const char* name) {
    return UniqueFd(::open(outputs.path(name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  };
  const UniqueFd out = file("out"), err = file("err");
  const Result<pid_t> child = spawn({.argv = std::move(argv),
                                     .extra_environment = std::move(environment),
                                     .stdout_fd = out.get(),
                                     .stderr_fd = err.get()});
  EXPECT_TRUE(child.ok()) << child.status().message();
  if (!child.ok()) return {};
  int status = 0;
  ::waitpid(*child, &status, 0);
  ::lseek(out.get(), 0, SEEK_SET);
  ::lseek(err.get(), 0, SEEK_SET);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_all(out.get()),
          read_all(err.get())};
}

}  // namespace elixir::ctl
