#include "checkpoint/hub_cache.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "base/text_file.h"
#include "checkpoint/folder_calls.h"
#include "checkpoint/manifest.h"

namespace elixir::checkpoints {
namespace {

namespace fs = std::filesystem;

constexpr int kMostTries = 1000;  // of a path with "..", while others rename files

bool same_file(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

struct Snapshot {
  UniqueFd model;    // models--ORG--NAME
  std::string path;  // of the snapshot in it
};

// By what lies around the folder, and not by its path: elixird gets a descriptor of a process that
// may see other paths.
std::optional<Snapshot> find_snapshot(int folder) {
  constexpr int kFolder = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
  Snapshot snapshot{.model = UniqueFd(::openat(folder, "../..", kFolder)), .path = {}};
  if (!snapshot.model.valid()) return std::nullopt;
  const UniqueFd blobs = open_subfolder(snapshot.model.get(), "blobs");
  const UniqueFd snapshots = open_subfolder(snapshot.model.get(), "snapshots");
  struct stat parent {
  }, listed{}, own{};
  if (!blobs.valid() || !snapshots.valid() || ::fstatat(folder, "..", &parent, 0) != 0 ||
      ::fstat(snapshots.get(), &listed) != 0 || ::fstat(folder, &own) != 0 ||
      !same_file(parent, listed)) {
    return std::nullopt;
  }
  const Result<std::vector<std::string>> names = names_in(snapshots.get());
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    struct stat about {};
    const bool there = ::fstatat(snapshots.get(), name.c_str(), &about, AT_SYMLINK_NOFOLLOW) == 0;
    if (!there || !same_file(about, own)) continue;
    snapshot.path = "snapshots/" + name;
    return snapshot;
  }
  return std::nullopt;
}

// No path that leaves `folder` is opened, and nothing of /proc.
UniqueFd open_beneath(int folder, const std::string& path) {
  open_how how{};
  how.flags = O_RDONLY | O_NONBLOCK | O_CLOEXEC;  // a pipe must not stop the program
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  for (int tries = 1;; ++tries) {
    UniqueFd fd(static_cast<int>(::syscall(SYS_openat2, folder, path.c_str(), &how, sizeof how)));
    if (fd.valid() || (errno != EAGAIN && errno != EINTR) || tries == kMostTries) return fd;
  }
}

Status not_followed(const char* why) {
  return error(Code::kBadInput, "a symbolic link{}; copy the folder with cp -rL", why);
}

// ---- names of the hub ----

std::string value_of(const char* variable) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

// In the order in which huggingface_hub looks.
std::string cache_folder() {
  for (const char* variable : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (std::string path = value_of(variable); !path.empty()) return path;
  }
  if (const std::string home = value_of("HF_HOME"); !home.empty()) return home + "/hub";
  if (const std::string cache = value_of("XDG_CACHE_HOME"); !cache.empty()) {
    return cache + "/huggingface/hub";
  }
  const std::string home = value_of("HOME");
  return home.empty() ? "" : home + "/.cache/huggingface/hub";
}

bool is_hub_name(std::string_view name) {
  constexpr size_t kMostBytes = 96;
  constexpr std::string_view kOthers = "._-/";
  const auto possible = [&](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           kOthers.find(c) != kOthers.npos;
  };
  const auto at_edge = [&](char c) { return kOthers.find(c) != kOthers.npos; };
  return !name.empty() && name.size() <= kMostBytes && !at_edge(name.front()) &&
         !at_edge(name.back()) && std::count(name.begin(), name.end(), '/') <= 1 &&
         name.find("..") == name.npos && name.find("--") == name.npos &&
         name.find("/.") == name.npos && std::all_of(name.begin(), name.end(), possible);
}

bool has_config(const fs::path& snapshot) {
  std::error_code ignored;
  return fs::is_regular_file(snapshot / "config.json", ignored);
}

}  // namespace

Result<UniqueFd> open_cache_link(int folder, const std::string& name) {
  ELIXIR_CHECK(is_file_name(name), "'{}' could lead out of the folder by itself", name);
  const std::optional<Snapshot> snapshot = find_snapshot(folder);
  if (!snapshot) return not_followed(", which is not followed");
  UniqueFd fd = open_beneath(snapshot->model.get(), snapshot->path + "/" + name);
  if (fd.valid()) return fd;
  switch (errno) {
    case EXDEV:
      return not_followed(" that leaves the hub's cache of the model, which is not followed");
    case ELOOP:
      return not_followed(" that leads to itself, or to /proc, which is not followed");
    case ENOENT:
      return error(Code::kBadInput,
                   "a symbolic link to a file that does not exist; download the model again (hf "
                   "download)");
    case ENOSYS:  // a kernel before 5.6
    case EPERM:   // a container that does not know the call
      return not_followed(", which cannot be followed safely on this system");
    default:
      return errno_status(Code::kBadInput, "a symbolic link that cannot be opened");
  }
}

std::string snapshot_of(const std::string& model) {
  const Result<std::string> branch = read_ordinary_file(model + "/refs/main");
  const std::string hash = branch.ok() ? branch->substr(0, branch->find_first_of(" \n")) : "";
  const fs::path snapshots = fs::path(model) / "snapshots";
  if (is_file_name(hash) && hash.find('/') == hash.npos && has_config(snapshots / hash)) {
    return snapshots / hash;
  }
  std::error_code failure;
  for (fs::directory_iterator entry(snapshots, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    if (has_config(entry->path())) return entry->path();
  }
  return "";
}

std::string missing_folder_remedy(const std::string& name) {
  if (!is_hub_name(name)) return "";
  std::string in_cache = "models--" + name;
  if (const size_t slash = in_cache.find('/'); slash != in_cache.npos) {
    in_cache.replace(slash, 1, "--");
  }
  const std::string cache = cache_folder();
  const std::string snapshot = cache.empty() ? "" : snapshot_of(cache + "/" + in_cache);
  if (!snapshot.empty()) {
    return fmt::format("; the hub's cache has it: give the folder {}", snapshot);
  }
  return fmt::format(
      "; if it is a model of the Hugging Face hub, download it and give the new folder: hf "
      "download {} --local-dir {}",
      name, name.substr(name.find('/') + 1));
}

Status with_download(const Status& status, const std::string& path) {
  std::error_code ignored;
  if (status.ok() || fs::exists(path, ignored)) return status;
  return error(status.code(), "{}{}", status.message(), missing_folder_remedy(path));
}

}  // namespace elixir::checkpoints
