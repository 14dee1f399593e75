#include "ctl/model_profile.h"

#include <sys/mman.h>
#include <unistd.h>

#include <string_view>
#include <vector>

#include "base/compute_type_names.h"
#include "base/fd.h"
#include "base/subprocess.h"
#include "ctl/helper_program.h"
#include "planner/profile_json.h"

namespace elixir::ctl {
namespace {

std::vector<std::string> arguments_of(const ModelProfileRequest& request) {
  std::vector<std::string> argv;
  if (!request.model.empty()) argv.push_back("--model=" + request.model);
  if (!request.config_path.empty()) argv.push_back("--config=" + request.config_path);
  argv.push_back("--batch=" + std::to_string(request.batch));
  if (request.seq != 0) argv.push_back("--seq=" + std::to_string(request.seq));
  if (request.layers != 0) argv.push_back("--layers=" + std::to_string(request.layers));
  if (!request.freeze.empty()) argv.push_back("--freeze=" + request.freeze);
  argv.push_back(std::string("--dtype=") + compute_type_name(request.dtype));
  if (!request.checkpoint_activations) argv.push_back("--no-checkpoint-activations");
  return argv;
}

// "elixir-profile: message" without the name.
std::string message_of(std::string text) {
  while (text.ends_with('\n')) text.pop_back();
  constexpr std::string_view kName = "elixir-profile: ";
  return text.starts_with(kName) ? text.substr(kName.size()) : text;
}

}  // namespace

Result<std::string> profile_json_of_model(const ModelProfileRequest& request) {
  // A file, which takes any number of LibTorch's warnings while the output is read.
  const UniqueFd failure_file(::memfd_create("elixir-profile-stderr", MFD_CLOEXEC));
  if (!failure_file.valid()) return errno_status(Code::kInternal, "a memory file");
  const Result<HelperRun> run = run_helper_program(
      "elixir-profile", arguments_of(request),
      "profiles models (a profile of before is as good: --profile FILE)", failure_file.get());
  if (!run.ok()) return run.status();
  if (run->exit_code != 0) {
    ::lseek(failure_file.get(), 0, SEEK_SET);
    return Status(static_cast<Code>(run->exit_code), message_of(read_all(failure_file.get())));
  }
  return run->output;
}

Result<planner::ModelProfile> profile_of_model(const ModelProfileRequest& request) {
  const Result<std::string> text = profile_json_of_model(request);
  if (!text.ok()) return text.status();
  return planner::profile_from_json(*text);
}

}  // namespace elixir::ctl
