#include "ctl/checkpoint_checks.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "base/progress.h"
#include "base/units.h"
#include "checkpoint/load_plan.h"
#include "checkpoint/stored_folder.h"

namespace elixir::ctl {
namespace {

using checkpoints::ListedCheckpoint;
using checkpoints::StoredFolder;

// "runs/a/" as "runs/a": its name is what stands last.
std::string without_slashes(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

std::string name_of(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

bool is_checkpoint(const std::string& path) {
  return checkpoints::step_of_name(name_of(path)).has_value() ||
         checkpoints::has_manifest(AT_FDCWD, path);
}

// How the table describes a valid checkpoint. `read`: its data were read and compared, too.
std::string state_of(const ListedCheckpoint& one, bool read) {
  const std::string text =
      std::string(read ? "as written" : "yes") + (one.states_alone ? ", states alone" : "");
  if (!one.good.has_value()) return text;
  return text + (*one.good ? ", good" : ", NOT GOOD: the run had diverged");
}

}  // namespace

Result<std::vector<ListedCheckpoint>> find_checkpoints(const std::string& given) {
  const std::string path = without_slashes(given);
  std::error_code failure;
  if (!std::filesystem::is_directory(path, failure)) {
    return error(Code::kBadInput, "{} is not a folder{}", path,
                 failure ? ": " + failure.message() : "");
  }
  if (is_checkpoint(path)) {
    const Result<ListedCheckpoint> one = checkpoints::list_checkpoint(path);
    if (!one.ok()) return one.status();
    return std::vector<ListedCheckpoint>{*one};
  }
  return checkpoints::list_checkpoints(path);
}

Status verify_checkpoint(ListedCheckpoint& listed, uint32_t threads) {
  if (!listed.valid) return Status();
  const Result<StoredFolder> folder = checkpoints::open_stored_folder(listed.path);
  Status status = folder.status();
  if (status.ok()) {
    checkpoints::ReadProgress progress;
    const ProgressNotes notes([&] {
      return bytes_done("elixirctl: " + name_of(listed.path), progress.bytes, listed.bytes);
    });
    status = checkpoints::verify(*folder, threads, &progress);
  }
  if (status.code() == Code::kResourceExhausted) return status;
  listed.valid = status.ok();
  listed.why = status.message();
  return Status();
}

std::string checkpoints_json(const std::vector<ListedCheckpoint>& all) {
  using json = nlohmann::ordered_json;
  json rows = json::array();
  for (const ListedCheckpoint& one : all) {
    rows.push_back({{"path", one.path},
                    {"step", one.step},
                    {"valid", one.valid},
                    {"bytes", one.bytes},
                    {"why", one.why},
                    {"good", one.good.has_value() ? json(*one.good) : json()},
                    {"states_alone", one.states_alone}});
  }
  return rows.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string checkpoints_text(const std::vector<ListedCheckpoint>& all, bool read) {
  size_t width = 10;
  for (const ListedCheckpoint& one : all) width = std::max(width, printable(one.path).size());
  std::string text = fmt::format("{:<{}}  {:>9}  {:>10}  {}\n", "checkpoint", width, "step",
                                 "bytes", read ? "all of it read" : "valid");
  for (const ListedCheckpoint& one : all) {
    text += fmt::format("{:<{}}  {:>9}  {:>10}  {}\n", printable(one.path), width, one.step,
                        one.bytes == 0 ? "-" : format_bytes(one.bytes),
                        one.valid ? state_of(one, read) : "NO: " + printable(one.why));
  }
  return text;
}

}  // namespace elixir::ctl
