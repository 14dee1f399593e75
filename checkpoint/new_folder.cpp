#include "checkpoint/new_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/log.h"
#include "checkpoint/folder_calls.h"
#include "checkpoint/listing.h"

namespace elixir::checkpoints {
namespace {

constexpr size_t kMaxEntryBytes = 255;  // NAME_MAX of Linux's file systems

Status check_name(const std::string& name, const std::string& tag) {
  const std::string unfinished = unfinished_name(name, tag);
  if (!is_file_name(name) || !is_file_name(unfinished) ||
      unfinished.find('/') != std::string::npos) {
    return error(Code::kInvalidArgument,
                 "'{}' cannot be a checkpoint's name: letters, digits, '.', '_' and '-' can, at "
                 "most {} with '{}'",
                 name, kMaxEntryBytes, unfinished_name("", tag));
  }
  return check_not_reserved(name);
}

// What saves left that were killed. It takes room, but hinders nothing.
void remove_left_over(int parent, const std::string& name) {
  const Result<std::vector<std::string>> entries = names_in(parent);
  if (!entries.ok()) return;
  for (const std::string& entry : *entries) {
    if (!is_left_over(entry, name)) continue;
    const Status removed = remove_folder(parent, entry);
    if (!removed.ok()) log_warn("checkpoint_left_over", "text=\"{}\"", removed.message());
  }
}

Status reserve_bytes(int fd, uint64_t bytes) {
  while (bytes > 0 && ::fallocate(fd, 0, 0, static_cast<off_t>(bytes)) != 0) {
    if (errno == EINTR) continue;
    if (errno == EOPNOTSUPP || errno == ENOSYS) break;
    return write_status(fmt::format("cannot reserve {} bytes for {}", bytes, path_of(fd)));
  }
  return Status();
}

std::vector<Piece> pieces_of(std::span<const std::byte> bytes) {
  std::vector<Piece> pieces;
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min<size_t>(bytes.size(), kMaxPieceBytes));
    pieces.push_back({piece.size(), xxh3_of(piece)});
    bytes = bytes.subspan(piece.size());
  }
  return pieces;
}

}  // namespace

Result<NewFolder> NewFolder::create(int parent, const std::string& name, uint64_t step,
                                    const std::string& tag) {
  ELIXIR_RETURN_IF_ERROR(check_name(name, tag));
  if (step_of_name(name).value_or(step) != step) {
    return error(Code::kInvalidArgument,
                 "'{}' is the name of another step's checkpoint, and this one is of step {}: call "
                 "it {}, or by no step's name",
                 name, step, step_name(step));
  }
  NewFolder made;
  made.name_ = name;
  made.tmp_name_ = unfinished_name(name, tag);
  made.step_ = step;
  Result<UniqueFd> readable = open_again(parent);
  if (!readable.ok()) return readable.status();
  made.parent_ = std::move(*readable);
  ELIXIR_RETURN_IF_ERROR(check_not_taken(parent, name));
  remove_left_over(parent, name);
  const std::string what =
      fmt::format("cannot make the folder {}/{}", path_of(parent), made.tmp_name_);
  if (::mkdirat(parent, made.tmp_name_.c_str(), 0777) != 0) return write_status(what);
  made.folder_ = open_subfolder(parent, made.tmp_name_);
  if (made.folder_.valid()) {
    made.give_access(made.folder_.get(), 0755);
    return made;
  }
  const Status failed = write_status(what);
  ::unlinkat(parent, made.tmp_name_.c_str(), AT_REMOVEDIR);
  return failed;
}

// Whoever may read the parent may read what lies in it, whatever this process's umask: it may be a
// daemon's, who creates for others. Advice: where it is refused, less may be read.
void NewFolder::give_access(int fd, unsigned most) const {
  struct stat about {};
  if (::fstat(parent_.get(), &about) != 0) return;
  [[maybe_unused]] const int given = ::fchmod(fd, (about.st_mode & most) | (most & 0700));
}

NewFolder::NewFolder(NewFolder&&) noexcept = default;
NewFolder& NewFolder::operator=(NewFolder&& other) noexcept {
  if (this == &other) return *this;
  remove();
  parent_ = std::move(other.parent_);
  folder_ = std::move(other.folder_);
  name_ = std::move(other.name_);
  tmp_name_ = std::move(other.tmp_name_);
  step_ = other.step_;
  files_ = std::move(other.files_);
  subfolders_ = std::move(other.subfolders_);
  small_files_ = std::move(other.small_files_);
  published_ = other.published_;
  spent_ = other.spent_;
  return *this;
}
NewFolder::~NewFolder() { remove(); }

void NewFolder::remove() {
  if (!folder_.valid() || published_) return;
  files_.clear();
  const Status named = check_named(tmp_name_);  // what is another's is not to go
  const Status removed = named.ok() ? remove_folder(parent_.get(), tmp_name_) : named;
  if (!removed.ok()) log_warn("checkpoint_left_over", "text=\"{}\"", removed.message());
}

Result<UniqueFd> NewFolder::open_new(const std::string& name) {
  const auto failed = [&] {
    return write_status(fmt::format("cannot make {}/{}", path_of(folder_.get()), name));
  };
  const size_t slash = name.find('/');
  const bool deep = slash != std::string::npos;
  const std::string subfolder = deep ? name.substr(0, slash) : "";
  int folder = folder_.get();
  if (deep) {
    auto open = subfolders_.find(subfolder);
    if (open == subfolders_.end()) {
      if (::mkdirat(folder_.get(), subfolder.c_str(), 0777) != 0) return failed();
      UniqueFd made = open_subfolder(folder_.get(), subfolder);
      if (!made.valid()) return failed();
      give_access(made.get(), 0755);
      open = subfolders_.emplace(subfolder, std::move(made)).first;
    }
    folder = open->second.get();
  }
  const std::string file = deep ? name.substr(slash + 1) : name;
  UniqueFd fd(
      ::openat(folder, file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!fd.valid()) return failed();
  give_access(fd.get(), 0644);
  return fd;
}

Result<int> NewFolder::create_file(const std::string& name, uint64_t bytes) {
  if (!is_file_name(name) || name == kManifestName) {
    return error(Code::kInvalidArgument, "a checkpoint cannot have a file '{}'", name);
  }
  Result<UniqueFd> fd = open_new(name);
  if (!fd.ok()) return fd.status();
  ELIXIR_RETURN_IF_ERROR(reserve_bytes(fd->get(), bytes));
  const int number = fd->get();
  files_.emplace(name, NewFile{std::move(*fd), bytes});
  return number;
}

Status NewFolder::write_file(const std::string& name, std::span<const std::byte> bytes) {
  const Result<int> fd = create_file(name, bytes.size());
  if (!fd.ok()) return fd.status();
  ELIXIR_RETURN_IF_ERROR(write_all(*fd, bytes, 0));
  ELIXIR_RETURN_IF_ERROR(sync_file(*fd));
  files_.erase(name);  // there may be more of them than descriptors
  small_files_.push_back({name, bytes.size(), pieces_of(bytes)});
  return Status();
}

Status NewFolder::sync_files() {
  for (const auto& [name, file] : files_) {
    struct stat about {};
    if (::fstat(file.fd.get(), &about) != 0) return write_status(path_of(file.fd.get()));
    if (static_cast<uint64_t>(about.st_size) != file.bytes) {
      return error(Code::kInternal, "{} has {} bytes, of {} that were to be written",
                   path_of(file.fd.get()), about.st_size, file.bytes);
    }
    ELIXIR_RETURN_IF_ERROR(sync_file(file.fd.get()));
  }
  for (const auto& [name, folder] : subfolders_) ELIXIR_RETURN_IF_ERROR(sync_folder(folder.get()));
  return sync_folder(folder_.get());
}

Status NewFolder::write_manifest(Manifest& manifest) {
  ELIXIR_CHECK(manifest.files.size() == files_.size(), "{} files are described, {} were made",
               manifest.files.size(), files_.size());
  for (const ManifestFile& file : manifest.files) {
    const auto made = files_.find(file.name);
    ELIXIR_CHECK(made != files_.end() && made->second.bytes == file.bytes, "{} bytes of {}",
                 file.bytes, file.name);
  }
  manifest.files.insert(manifest.files.end(), small_files_.begin(), small_files_.end());
  std::sort(manifest.files.begin(), manifest.files.end(),
            [](const ManifestFile& a, const ManifestFile& b) { return a.name < b.name; });
  const std::string text = encode_manifest(manifest);
  if (text.size() > kMaxManifestBytes) {
    return error(Code::kResourceExhausted, "a manifest of {} bytes, at most {} can be read",
                 text.size(), kMaxManifestBytes);
  }
  const Result<UniqueFd> fd = open_new(kManifestName);
  if (!fd.ok()) return fd.status();
  ELIXIR_RETURN_IF_ERROR(write_all(fd->get(), std::as_bytes(std::span(text)), 0));
  return sync_file(fd->get());
}

Status NewFolder::check_named(const std::string& name) const {
  if (is_named(parent_.get(), name, folder_.get())) return Status();
  return error(Code::kInvalidArgument,
               "{}/{} is not the folder that was written, which lies in {} now: do not rename or "
               "replace a folder while it is being saved",
               path_of(parent_.get()), name, path_of(folder_.get()));
}

Status NewFolder::publish(Manifest manifest) {
  ELIXIR_CHECK(!std::exchange(spent_, true), "{} is published twice", name_);
  ELIXIR_CHECK(manifest.step == step_, "{} was to be of step {}, not {}", name_, step_,
               manifest.step);
  ELIXIR_RETURN_IF_ERROR(sync_files());
  ELIXIR_RETURN_IF_ERROR(write_manifest(manifest));
  ELIXIR_RETURN_IF_ERROR(sync_folder(folder_.get()));
  ELIXIR_RETURN_IF_ERROR(check_named(tmp_name_));
  ELIXIR_RETURN_IF_ERROR(rename_to_new(parent_.get(), tmp_name_, name_));
  published_ = true;  // whatever comes now: somebody may have seen it
  ELIXIR_RETURN_IF_ERROR(check_named(name_));
  return sync_folder(parent_.get());
}

}  // namespace elixir::checkpoints
