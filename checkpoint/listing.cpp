#include "checkpoint/listing.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <thread>
#include <utility>

#include "base/fd.h"
#include "base/log.h"
#include "checkpoint/folder_calls.h"
#include "checkpoint/folder_lock.h"
#include "checkpoint/manifest.h"
#include "checkpoint/stored_folder.h"

namespace elixir::checkpoints {
namespace {

constexpr std::string_view kStep = "step-";

// What stands last in a path: of "runs/a/" it is "a".
std::string name_in(const std::string& path) {
  const std::filesystem::path normal = std::filesystem::path(path).lexically_normal();
  return normal.has_filename() ? normal.filename() : normal.parent_path().filename();
}

// The files of a folder, some of them in subfolders, which are opened once.
class Sizes {
 public:
  explicit Sizes(int folder) : folder_(folder) {}

  Status check(const ManifestFile& file) {
    const size_t slash = file.name.find('/');
    int folder = folder_;
    std::string name = file.name;
    if (slash != std::string::npos) {
      const std::string subfolder = name.substr(0, slash);
      name = name.substr(slash + 1);
      auto open = subfolders_.find(subfolder);
      if (open == subfolders_.end()) {
        UniqueFd opened = open_subfolder(folder_, subfolder);
        if (!opened.valid()) {
          return errno_status(Code::kBadInput, file.name + ": its folder is missing or invalid");
        }
        open = subfolders_.emplace(subfolder, std::move(opened)).first;
      }
      folder = open->second.get();
    }
    struct stat about {};
    if (::fstatat(folder, name.c_str(), &about, AT_SYMLINK_NOFOLLOW) != 0) {
      return errno_status(Code::kBadInput, file.name);
    }
    if (!S_ISREG(about.st_mode)) {
      return error(Code::kBadInput, "{} is not an ordinary file", file.name);
    }
    const Status size = check_size(file, static_cast<uint64_t>(about.st_size));
    return size.ok() ? size : error(size.code(), "{}: {}", file.name, size.message());
  }

 private:
  const int folder_;
  std::map<std::string, UniqueFd> subfolders_;
};

// Sets bytes, and the step where no name says one, once the manifest has said them.
Status look_at(int folder, const std::string& name, ListedCheckpoint& listed) {
  const Result<std::optional<Manifest>> read = read_manifest(folder);
  if (!read.ok()) return read.status();
  if (!read->has_value()) {
    return error(Code::kBadInput, "it has no {}: it was never finished, or is a plain model",
                 kManifestName);
  }
  const Manifest& manifest = **read;
  listed.step = step_of_name(name).value_or(manifest.step);
  if (manifest.health) listed.good = manifest.health->good();
  listed.states_alone = manifest.states_alone;
  for (const ManifestFile& file : manifest.files) listed.bytes += file.bytes;
  ELIXIR_RETURN_IF_ERROR(check_named_step(name, manifest.step));
  Sizes sizes(folder);
  for (const ManifestFile& file : manifest.files) ELIXIR_RETURN_IF_ERROR(sizes.check(file));
  return Status();
}

Status look_at_entry(int parent, const std::string& name, ListedCheckpoint& listed) {
  const UniqueFd folder = open_subfolder(parent, name);
  if (folder.valid()) return look_at(folder.get(), name, listed);
  struct stat about {};
  const int failure = errno;
  const bool link =
      ::fstatat(parent, name.c_str(), &about, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(about.st_mode);
  if (link) return error(Code::kBadInput, "it is a symbolic link, which is not followed");
  errno = failure;
  return errno_status(Code::kBadInput, "it is not a folder that can be read");
}

// Returns an error if descriptors or memory ran out: that says nothing about the checkpoint.
Status judge(ListedCheckpoint& listed, const Status& looked_at) {
  listed.valid = looked_at.ok();
  listed.why = looked_at.message();
  if (looked_at.code() != Code::kResourceExhausted) return Status();
  return error(looked_at.code(), "{}: {}", listed.path, looked_at.message());
}

Result<std::vector<ListedCheckpoint>> list_open(int folder, const std::string& path) {
  Result<std::vector<std::string>> names = names_in(folder);
  if (!names.ok()) return names.status();
  std::vector<ListedCheckpoint> all;
  for (const std::string& name : *names) {
    const std::optional<uint64_t> step = step_of_name(name);
    if (!step) continue;
    ListedCheckpoint& listed = all.emplace_back();
    listed.path = fmt::format("{}/{}", path, name);
    listed.step = *step;
    ELIXIR_RETURN_IF_ERROR(judge(listed, look_at_entry(folder, name, listed)));
  }
  std::sort(all.begin(), all.end(),
            [](const ListedCheckpoint& a, const ListedCheckpoint& b) { return a.step < b.step; });
  return all;
}

// Steps of valid checkpoints that go, ascending. What is not valid stays for somebody to look at:
// it may be another version's.
std::vector<uint64_t> steps_to_remove(const std::vector<ListedCheckpoint>& all, const Keep& keep,
                                      uint64_t up_to) {
  std::vector<uint64_t> valid;
  for (const ListedCheckpoint& listed : all) {
    if (listed.valid && listed.step <= up_to) valid.push_back(listed.step);
  }
  const size_t last = keep.last == 0 ? valid.size() : std::min<size_t>(keep.last, valid.size());
  valid.resize(valid.size() - last);
  // A run that diverges would push it out by checkpoints that are worth nothing.
  const ListedCheckpoint* const good = newest_good(all, up_to);
  if (good != nullptr) std::erase(valid, good->step);
  std::erase_if(valid, [&](uint64_t step) { return keep.every > 0 && step % keep.every == 0; });
  return valid;
}

Status lock_status(int folder, double timeout_s, const std::string& holder = {}) {
  if (errno != EWOULDBLOCK) {
    return write_status(fmt::format("cannot lock {}/{}", path_of(folder), kLockName));
  }
  return error(Code::kAlreadyRunning,
               "{} belongs to another job, {}, which has kept {} for {:.0f} s: wait for it to end, "
               "or give each job a folder of its own",
               path_of(folder), holder, kLockName, timeout_s);
}

}  // namespace

std::string step_name(uint64_t step) { return fmt::format("{}{:09}", kStep, step); }

std::optional<uint64_t> step_of_name(std::string_view name) {
  constexpr size_t kMostDigits = 20;
  if (!name.starts_with(kStep)) return std::nullopt;
  const std::string digits(name.substr(kStep.size()));
  if (digits.size() > kMostDigits) return std::nullopt;
  const uint64_t step = std::strtoull(digits.c_str(), nullptr, 10);
  // One name a step, so that no two folders are the same step's.
  return name == step_name(step) ? std::optional(step) : std::nullopt;
}

Status check_named_step(const std::string& path, uint64_t step) {
  const std::optional<uint64_t> named = step_of_name(name_in(path));
  if (!named || *named == step) return Status();
  return error(Code::kBadInput,
               "its manifest is of step {}, its name of another: it was renamed, or copied here; "
               "call it {}, or by no step's name",
               step, step_name(step));
}

Result<ListedCheckpoint> list_checkpoint(const std::string& path) {
  const std::string name = name_in(path);
  ListedCheckpoint listed{.path = path, .step = step_of_name(name).value_or(0), .why = {}};
  const UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const Status looked_at =
      folder.valid() ? look_at(folder.get(), name, listed)
                     : errno_status(Code::kBadInput, "it is not a folder that can be read");
  ELIXIR_RETURN_IF_ERROR(judge(listed, looked_at));
  return listed;
}

Result<std::vector<ListedCheckpoint>> list_checkpoints(const std::string& folder) {
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return errno_status(Code::kBadInput, folder);
  return list_open(fd.get(), folder);
}

Result<Latest> latest_checkpoint(const std::string& folder) {
  Result<std::vector<ListedCheckpoint>> all = list_checkpoints(folder);
  if (!all.ok()) return all.status();
  return latest_of(std::move(*all), folder);
}

Result<Latest> latest_of(std::vector<ListedCheckpoint> all, const std::string& folder) {
  Latest latest;
  while (!all.empty() && !all.back().valid) {
    latest.passed_over.push_back(std::move(all.back()));
    all.pop_back();
  }
  if (!all.empty()) {
    latest.checkpoint = std::move(all.back());
    return latest;
  }
  std::string why = latest.passed_over.empty() ? "it has no folder named step-NNNNNNNNN" : "";
  for (const ListedCheckpoint& passed : latest.passed_over) {
    why += fmt::format("{}{}: {}", why.empty() ? "" : "; ", passed.path, passed.why);
  }
  return error(Code::kBadInput, "{} has no complete checkpoint: {}", folder, why);
}

const ListedCheckpoint* newest_good(const std::vector<ListedCheckpoint>& all, uint64_t up_to) {
  const ListedCheckpoint* unknown = nullptr;
  for (auto listed = all.rbegin(); listed != all.rend(); ++listed) {
    if (!listed->valid || listed->step > up_to) continue;
    if (listed->good.value_or(false)) return &*listed;
    if (!listed->good && unknown == nullptr) unknown = &*listed;
  }
  return unknown;
}

Result<uint32_t> prune(int folder, const Keep& keep, uint64_t up_to) {
  const Result<std::vector<ListedCheckpoint>> all = list_open(folder, path_of(folder));
  if (!all.ok()) return all.status();
  // One that cannot be removed is no hindrance to the others.
  Status first_failure;
  const auto done = [&first_failure](Status status) {
    const bool ok = status.ok();
    if (first_failure.ok()) first_failure = std::move(status);
    return ok;
  };
  std::vector<std::string> renamed;
  for (const uint64_t step : steps_to_remove(*all, keep, up_to)) {
    const std::string name = step_name(step);
    const std::string deleting = deleting_name(name);
    // Half removed before, and named so once more since.
    const bool there = open_subfolder(folder, deleting).valid();
    if (there && !done(remove_folder(folder, deleting))) continue;
    if (::renameat(folder, name.c_str(), folder, deleting.c_str()) == 0) {
      renamed.push_back(deleting);
    } else {
      done(write_status(fmt::format("cannot rename {}/{} to {}", path_of(folder), name, deleting)));
    }
  }
  // Before their files go: else, after a loss of power, a checkpoint could be there without them.
  if (!renamed.empty() && !done(sync_folder(folder))) return first_failure;
  for (const std::string& name : renamed) done(remove_folder(folder, name));
  if (!first_failure.ok()) return first_failure;
  return static_cast<uint32_t>(renamed.size());
}

Result<int> lock_folder(int folder, double timeout_s) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kPause = std::chrono::milliseconds(20),
                 kLongPause = std::chrono::milliseconds(500);
  constexpr auto kFinishing = std::chrono::duration<double>(kFinishingSeconds);
  UniqueFd fd(::openat(folder, kLockName, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!fd.valid()) return lock_status(folder, timeout_s);
  const auto end = Clock::now() + std::chrono::duration<double>(timeout_s);
  bool said = false, said_finishing = false;
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno == ENOSYS || errno == EOPNOTSUPP || errno == ENOLCK) {
      log_warn("checkpoint_lock", "folder={} text=\"this file system knows no locks: {}\"",
               path_of(folder), std::strerror(errno));
      break;
    }
    if (errno != EWOULDBLOCK) return lock_status(folder, timeout_s);
    const auto now = Clock::now();
    if (now < end && !std::exchange(said, true)) {
      log_warn("checkpoint_lock_waits",
               "folder=\"{}\" held_by=\"{}\" effect=\"this job waits up to {:.0f} s for its end\"",
               path_of(folder), holder_of(fd.get()), timeout_s);
    }
    // Longer while a save is being finished there.
    if (now >= end) {
      const std::string unfinished = now < end + kFinishing ? unfinished_in(folder) : "";
      if (unfinished.empty()) {
        errno = EWOULDBLOCK;
        return lock_status(folder, timeout_s, holder_of(fd.get()));
      }
      if (!std::exchange(said_finishing, true)) {
        log_warn("checkpoint_lock_waits",
                 "folder=\"{}\" why=\"another job's save is being finished there, {}\" "
                 "effect=\"this one begins after it, or ends after an hour\"",
                 path_of(folder), unfinished);
      }
    }
    std::this_thread::sleep_for(now < end ? kPause : kLongPause);
  }
  // Advice, for whoever waits: a full disk is no reason to stop.
  [[maybe_unused]] const Status named = write_holder(fd.get(), "");
  return fd.release();
}

}  // namespace elixir::checkpoints
