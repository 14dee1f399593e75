#include "planner/machine_cache.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/processors.h"
#include "base/text_file.h"
#include "planner/json_fields.h"
#include "planner/machine_json.h"

namespace elixir::planner {
namespace {

namespace fs = std::filesystem;

constexpr char kMachineFileVariable[] = "ELIXIR_MACHINE_FILE";
constexpr char kRatesPrefix[] = "rates-";
constexpr size_t kLongestFileName = 200;

// "" when the variable is not set; XDG's rule: a relative path counts as none.
std::string folder_of(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr && value[0] == '/' ? value : "";
}

// After a system call that failed.
Status failed(const char* action, const std::string& path) {
  return error(Code::kUnavailable,
               "cannot {} {}: {}; set XDG_CACHE_HOME to a folder that can be written, or "
               "ELIXIR_MACHINE_FILE to a file",
               action, path, std::generic_category().message(errno));
}

}  // namespace

std::string to_json(const ProbedMachine& probed) {
  auto out = nlohmann::ordered_json::parse(to_json(probed.machine));
  if (!probed.device.empty()) out["device"] = probed.device;
  if (!probed.hardware.empty()) out["hardware"] = probed.hardware;
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
  fields.optional("hardware", &probed.hardware);
  fields.optional("notes", &probed.notes);
  if (!status.ok()) return status;
  return probed;
}

Result<std::string> cache_folder() {
  if (const std::string folder = folder_of("XDG_CACHE_HOME"); !folder.empty()) {
    return folder + "/elixir";
  }
  const std::string home = folder_of("HOME");
  if (home.empty()) {
    return error(Code::kInvalidArgument,
                 "neither XDG_CACHE_HOME nor HOME names a folder for what this machine can do; set "
                 "XDG_CACHE_HOME to one");
  }
  return home + "/.cache/elixir";
}

void keep_newest(std::string_view prefix, size_t most, const std::string& kept) {
  const Result<std::string> folder = cache_folder();
  if (!folder.ok()) return;
  std::vector<std::pair<fs::file_time_type, fs::path>> files;
  std::error_code failure;
  for (fs::directory_iterator entry(*folder, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    const fs::path& path = entry->path();
    if (!path.filename().string().starts_with(prefix) || path == kept) continue;
    std::error_code gone;
    const fs::file_time_type written = entry->last_write_time(gone);
    if (!gone) files.emplace_back(written, path);
  }
  std::sort(files.begin(), files.end());
  for (size_t i = 0; i + most <= files.size(); ++i) fs::remove(files[i].second, failure);
}

bool machine_file_is_named() {
  const char* const named = std::getenv(kMachineFileVariable);
  return named != nullptr && named[0] != '\0';
}

Result<std::string> machine_cache_path() {
  if (machine_file_is_named()) return std::string(std::getenv(kMachineFileVariable));
  const Result<std::string> folder = cache_folder();
  if (!folder.ok()) {
    return error(folder.status().code(), "{}, or ELIXIR_MACHINE_FILE=FILE",
                 folder.status().message());
  }
  return fmt::format("{}/machine-{}.json", *folder, host_name());
}

Result<std::string> hardware_cache_path(std::string_view hardware) {
  const Result<std::string> folder = cache_folder();
  if (!folder.ok()) return folder;
  std::string name;
  for (const char letter : hardware.substr(0, kLongestFileName)) {
    const bool plain = std::isalnum(static_cast<unsigned char>(letter)) != 0;
    if (plain || (!name.empty() && name.back() != '-')) name += plain ? letter : '-';
  }
  return fmt::format("{}/{}{}.json", *folder, kRatesPrefix, name);
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

Result<std::vector<std::string>> forget_hardware() {
  std::vector<std::string> removed;
  const Result<std::string> folder = cache_folder();
  if (!folder.ok()) return removed;
  std::error_code failure;
  for (fs::directory_iterator entry(*folder, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    if (!entry->path().filename().string().starts_with(kRatesPrefix)) continue;
    const Result<bool> there = forget_machine(entry->path());
    if (!there.ok()) return there.status();
    if (*there) removed.push_back(entry->path());
  }
  return removed;
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
