#include "models/written_folders.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "checkpoint/save_place.h"

namespace elixir {
namespace {

std::string parent_of(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const size_t slash = path.rfind('/');
  if (slash == path.npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// Why no file can be made in `parent`, with the remedy; "": one can.
std::string why_not_in(const std::string& parent) {
  struct stat about {};
  if (::stat(parent.c_str(), &about) != 0) {
    if (errno == ENOENT) return fmt::format("the folder {} does not exist; make it first", parent);
    return fmt::format("{} cannot be looked at: {}", parent, std::strerror(errno));
  }
  if (!S_ISDIR(about.st_mode)) return fmt::format("{} is not a folder; give another path", parent);
  if (::faccessat(AT_FDCWD, parent.c_str(), W_OK | X_OK, AT_EACCESS) == 0) return "";
  return fmt::format("{} is not writable ({}); give another path", parent, std::strerror(errno));
}

// `folder`: it is to be a folder, else a file. It may be made.
Status check_place(const char* flag, const std::string& path, bool folder) {
  struct stat about {};
  std::string why;
  if (path.empty()) return {};
  if (::stat(path.c_str(), &about) != 0) {
    why = why_not_in(parent_of(path));
  } else if (S_ISDIR(about.st_mode) != folder) {
    why = folder ? "it is a file; give a folder" : "it is a folder; give a file";
  } else if (::faccessat(AT_FDCWD, path.c_str(), folder ? W_OK | X_OK : W_OK, AT_EACCESS) != 0) {
    why = fmt::format("it is not writable ({}); give another path", std::strerror(errno));
  }
  return why.empty() ? Status() : error(Code::kInvalidArgument, "{} {}: {}", flag, path, why);
}

Status check_export(const CheckpointOptions& options) {
  // In the folder of checkpoints it is refused anyway, whether that is there yet or not.
  if (options.export_folder.empty() || parent_of(options.export_folder) == options.folder)
    return {};
  const Status status = checkpoints::save_place(options.export_folder).status();
  return status.ok() ? status : error(status.code(), "--export: {}", status.message());
}

}  // namespace

Problems check_written(const TrainOptions& options) {
  const CheckpointOptions& folders = options.checkpoints;
  const bool writes = !folders.folder.empty() || !folders.export_folder.empty();
  const auto& environment = options.run.environment;
  Problems problems;
  if (writes && environment && !environment->one_node()) {
    problems.add(error(Code::kInvalidArgument,
                       "--checkpoints and --export: a run over several nodes cannot save yet; "
                       "leave them out (--resume FOLDER and --init FOLDER work)"));
  }
  problems.add(check_place("--checkpoints", folders.folder, /*folder=*/true));
  problems.add(check_export(folders));
  const std::pair<const char*, const std::string*> files[] = {
      {"--jsonl", &options.jsonl},
      {"--trace", &options.run.trace},
      {"--predicted-trace", &options.predicted_trace},
      {"--memory-picture", &options.memory_picture},
  };
  for (const auto& [flag, path] : files) problems.add(check_place(flag, *path, /*folder=*/false));
  return problems;
}

}  // namespace elixir
