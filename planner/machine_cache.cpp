#include "planner/machine_cache.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/processors.h"
#include "base/text_file.h"
#include "planner/json_fields.h"
#include "planner/machine_json.h"

namespace elixir::planner {
namespace {

namespace fs = std::filesystem;

// "" when the variable is not set; XDG's rule: a relative path counts as none.
std::string folder_of(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr && value[0] == '/' ? value : "";
}

// After a system call that failed.
Status failed(const char* action, const std::string& path) {
  return error(Code::kUnavailable,
               "cannot {} {}: {}; set ELIXIR_MACHINE_FILE to a file that can be written", action,
               path, std::generic_category().message(errno));
}

}  // namespace

std::string to_json(const ProbedMachine& probed) {
  auto out = nlohmann::ordered_json::parse(to_json(probed.machine));
  if (!probed.device.empty()) out["device"] = probed.device;
  if (!probed.notes.empty()) out["notes"] = probed.notes;
  return out.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

Result<ProbedMachine> probed_from_json(std::string_view text) {
  Result<Machine> machine = machine_from_json(text);
  if (!machine.ok()) return machine.status();
  ProbedMachine probed{.machine = std::move(*machine)};
  const auto file = nlohmann::json::parse(text);  // an object, as machine_from_json() found
  Status status;
  JsonFields fields(file, "the machine file's ", &status);
  fields.optional("device", &probed.device);
  fields.optional("notes", &probed.notes);
  if (!status.ok()) return status;
  return probed;
}

Result<std::string> machine_cache_path() {
  const char* const named = std::getenv("ELIXIR_MACHINE_FILE");
  if (named != nullptr && named[0] != '\0') return std::string(named);
  std::string folder = folder_of("XDG_CACHE_HOME");
  if (folder.empty()) {
    const std::string home = folder_of("HOME");
    if (home.empty()) {
      return error(Code::kInvalidArgument,
                   "neither XDG_CACHE_HOME nor HOME names a folder for what this machine can do; "
                   "set ELIXIR_MACHINE_FILE=FILE");
    }
    folder = home + "/.cache";
  }
  return fmt::format("{}/elixir/machine-{}.json", folder, host_name());
}

Result<std::optional<ProbedMachine>> load_machine(const std::string& path) {
  const auto unusable = [&path](const std::string& why) {
    return error(Code::kBadInput, "{}: {}; remove it or run elixirctl probe", path, why);
  };
  struct stat state {};
  if (::stat(path.c_str(), &state) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return std::optional<ProbedMachine>();
    return unusable(std::generic_category().message(errno));
  }
  if (!S_ISREG(state.st_mode)) return unusable("no regular file");
  const Result<std::string> text = read_text_file(path);
  if (!text.ok()) return text.status();
  Result<ProbedMachine> probed = probed_from_json(*text);
  if (!probed.ok()) return unusable(probed.status().message());
  return std::optional<ProbedMachine>(std::move(*probed));
}

Result<bool> forget_machine(const std::string& path) {
  if (::unlink(path.c_str()) == 0) return true;
  if (errno == ENOENT || errno == ENOTDIR) return false;
  return failed("remove", path);
}

Status store_machine(const std::string& path, const ProbedMachine& probed) {
  const fs::path folder = fs::path(path).parent_path();
  std::error_code failure;
  if (!folder.empty()) fs::create_directories(folder, failure);
  if (failure) {
    errno = failure.value();
    return failed("make", folder);
  }
  const std::string temporary = fmt::format("{}.{}", path, ::getpid());
  const bool stored = write_text_file(temporary, to_json(probed)).ok() &&
                      ::rename(temporary.c_str(), path.c_str()) == 0;
  if (stored) return Status();
  const Status why = failed("write", path);
  ::unlink(temporary.c_str());
  return why;
}

}  // namespace elixir::planner
