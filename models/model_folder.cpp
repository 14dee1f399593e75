#include "models/model_folder.h"

#include <sys/stat.h>

#include <cerrno>
#include <vector>

#include "base/throw_error.h"
#include "checkpoint/hub_cache.h"
#include "checkpoint/listing.h"

namespace elixir {
namespace {

constexpr int kMostTries = 3;

bool is_gone(const std::string& path) {
  struct stat about {};
  return ::stat(path.c_str(), &about) != 0 && errno == ENOENT;
}

}  // namespace

Result<std::string> model_folder(const std::string& folder) {
  struct stat about {};
  const bool there = ::stat((folder + "/config.json").c_str(), &about) == 0;
  const int why = there ? 0 : errno;
  if (there && !S_ISDIR(about.st_mode)) return folder;
  if (::stat(folder.c_str(), &about) == 0 && !S_ISDIR(about.st_mode)) {
    const size_t slash = folder.rfind('/');
    return error(Code::kBadInput, "{}: it is a file; give its folder: {}", folder,
                 slash == folder.npos ? "." : folder.substr(0, slash));
  }
  if (why == EACCES || ::stat(folder.c_str(), &about) != 0) {
    return errno == ENOENT ? error(Code::kBadInput, "{}: this folder does not exist{}", folder,
                                   checkpoints::missing_folder_remedy(folder))
                           : errno_status(Code::kBadInput, folder);
  }
  const Result<std::vector<checkpoints::ListedCheckpoint>> all =
      checkpoints::list_checkpoints(folder);
  if (!all.ok()) return all.status();
  const Result<checkpoints::Latest> latest = checkpoints::latest_of(*all, folder);
  if (latest.ok()) return latest->checkpoint.path;
  if (!all->empty()) return latest.status();
  const std::string snapshot = checkpoints::snapshot_of(folder);
  if (!snapshot.empty()) {
    return error(Code::kBadInput,
                 "{}: it is a folder of the hub's cache, and the model is in its snapshot: give {}",
                 folder, snapshot);
  }
  return error(Code::kBadInput,
               "{}: it has neither a config.json nor a checkpoint; give a checkpoint of "
               "elixir-train or a Hugging Face folder",
               folder);
}

void use_model_folder(const std::string& folder,
                      const std::function<void(const std::string& chosen, int tries)>& use) {
  for (int tries = 1;; ++tries) {
    const std::string chosen = value_or_throw(model_folder(folder));
    try {
      return use(chosen, tries);
    } catch (const Error&) {
      if (chosen == folder || tries == kMostTries || !is_gone(chosen)) throw;
    }
  }
}

}  // namespace elixir
