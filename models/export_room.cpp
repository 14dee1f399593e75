#include "models/export_room.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/units.h"
#include "checkpoint/file_plan.h"
#include "planner/models/transformer_config.h"

namespace elixir {
namespace {

// elixir.json, and the parts of blocks at files' ends.
constexpr uint64_t kManifestBytes = 256 << 10;

uint64_t free_bytes(int fd) {
  struct statvfs about {};
  return ::fstatvfs(fd, &about) == 0 ? uint64_t{about.f_bavail} * about.f_frsize : UINT64_MAX;
}

// O_TMPFILE where the file system has it; else a file whose name goes at once.
UniqueFd nameless_file(const std::string& folder) {
  UniqueFd file(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (file.valid()) return file;
  std::string name = folder + "/.elixir-room-XXXXXX";
  file.reset(::mkostemp(name.data(), O_CLOEXEC));
  if (file.valid()) ::unlink(name.c_str());
  return file;
}

}  // namespace

Result<ExportRoom> ExportRoom::hold(const std::string& path, const std::string& parent,
                                    uint64_t bytes) {
  ELIXIR_CHECK(bytes > 0 && bytes <= INT64_MAX, "{} bytes", bytes);
  ExportRoom room;
  room.file_ = nameless_file(parent);
  if (!room.file_.valid()) {
    return error(Code::kInvalidArgument, "--export {}: no file can be made in {}: {}", path, parent,
                 std::strerror(errno));
  }
  const uint64_t before = free_bytes(room.file_.get());
  int failure = 0;
  do {
    failure = ::fallocate(room.file_.get(), 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  } while (failure == EINTR);
  if (failure == 0) return room;
  const bool cannot_reserve = failure == EOPNOTSUPP || failure == ENOSYS;
  if (cannot_reserve && before >= bytes) return ExportRoom();
  return error(Code::kResourceExhausted,
               "--export {}: the model takes {} there, and {} has {} free ({}): make room, or "
               "export to another disk",
               path, format_bytes(bytes), parent, format_bytes(before),
               std::strerror(cannot_reserve ? ENOSPC : failure));
}

Result<uint64_t> export_bytes(const TrainOptions& options,
                              const std::vector<std::pair<std::string, std::string>>& files) {
  std::vector<checkpoints::SavedParameter> parameters;
  for (const planner::NamedShape& parameter : planner::transformer_parameters(options.config)) {
    parameters.push_back({.name = parameter.name,
                          .shape = parameter.shape,
                          .chunk = static_cast<uint32_t>(parameters.size()),
                          .numel = parameter.numel()});
  }
  const Result<checkpoints::FilePlan> plan = checkpoints::plan_files(
      parameters, {}, {.type = options.run.dtype, .optimizer_states = false});
  if (!plan.ok()) return plan.status();
  uint64_t bytes = plan->bytes + plan->index.size() + kManifestBytes;
  for (const auto& [name, text] : files) bytes += text.size();
  return bytes;
}

}  // namespace elixir
