#include "ctl/model_profile.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "base/subprocess.h"
#include "planner/profile_json.h"

namespace elixir::ctl {
namespace {

std::vector<std::string> command_line(const ModelProfileRequest& request, std::string program) {
  std::vector<std::string> argv = {std::move(program)};
  if (!request.model.empty()) argv.push_back("--model=" + request.model);
  if (!request.config_path.empty()) argv.push_back("--config=" + request.config_path);
  argv.push_back("--batch=" + std::to_string(request.batch));
  argv.push_back("--seq=" + std::to_string(request.seq));
  argv.push_back("--dtype=" + request.dtype);
  if (!request.checkpoint_activations) argv.push_back("--no-checkpoint-activations");
  return argv;
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

// "elixir-profile: message" without the name.
std::string message_of(std::string text) {
  while (text.ends_with('\n')) text.pop_back();
  constexpr std::string_view kName = "elixir-profile: ";
  return text.starts_with(kName) ? text.substr(kName.size()) : text;
}

}  // namespace

Result<std::string> profile_json_of_model(const ModelProfileRequest& request) {
  const std::string program = program_folder() + "/elixir-profile";
  if (::access(program.c_str(), X_OK) != 0) {
    return error(Code::kUnavailable,
                 "{} is not there to profile with; build with ELIXIR_WITH_TORCH=ON, install "
                 "elixirctl and elixir-profile into one folder, or give a profile: --profile FILE",
                 program);
  }
  int out[2];
  if (::pipe2(out, O_CLOEXEC) != 0) return errno_status(Code::kInternal, "a pipe");
  const UniqueFd out_end(out[0]);
  UniqueFd out_write(out[1]);
  // A file, which takes any number of LibTorch's warnings while the other end is read.
  const UniqueFd failure_file(::memfd_create("elixir-profile-stderr", MFD_CLOEXEC));
  if (!failure_file.valid()) return errno_status(Code::kInternal, "a memory file");
  const Result<pid_t> child = spawn({.argv = command_line(request, program),
                                     .extra_environment = {},
                                     .stdout_fd = out_write.get(),
                                     .stderr_fd = failure_file.get(),
                                     .parent_death_signal = SIGTERM});
  if (!child.ok()) return child.status();
  out_write.reset();
  std::string text = read_all(out_end.get());
  int status = 0;
  while (::waitpid(*child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status)) {
    return error(Code::kInternal, "elixir-profile was ended by signal {}", WTERMSIG(status));
  }
  if (WEXITSTATUS(status) != 0) {
    ::lseek(failure_file.get(), 0, SEEK_SET);
    const std::string failure = read_all(failure_file.get());
    return Status(static_cast<Code>(WEXITSTATUS(status)), message_of(failure));
  }
  return text;
}

Result<planner::ModelProfile> profile_of_model(const ModelProfileRequest& request) {
  const Result<std::string> text = profile_json_of_model(request);
  if (!text.ok()) return text.status();
  return planner::profile_from_json(*text);
}

}  // namespace elixir::ctl
