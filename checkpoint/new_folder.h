#pragma once

// A checkpoint while it is written: NAME.tmp-TAG beside where NAME will be. It appears under its
// name whole or not at all: files, fsync, their folders, the manifest, fsync, the folder, rename,
// fsync of the parent. An fsync that failed is not tried again: what it lost nobody knows.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "checkpoint/manifest.h"

namespace elixir::checkpoints {

class NewFolder {
 public:
  // Makes NAME.tmp-TAG in the open folder `parent` after it has removed what others left there:
  // NAME.tmp-*, step-*.tmp-*, .deleting-step-*. So its caller holds lock_folder(parent).
  // kInvalidArgument: `name` has a slash, is none that is_file_name() and check_not_reserved()
  // allow, is taken, or is that of another step; or `parent` cannot be read. Else as write_status:
  // kResourceExhausted for a full disk.
  static Result<NewFolder> create(int parent, const std::string& name, uint64_t step,
                                  const std::string& tag);
  NewFolder(NewFolder&&) noexcept;
  NewFolder& operator=(NewFolder&&) noexcept;
  // Removes it, unless it was published.
  ~NewFolder();

  // A new file of so many bytes, reserved where the file system can. Any thread may write it. Its
  // pieces are the caller's to hash, and to bring to publish().
  Result<int> create_file(const std::string& name, uint64_t bytes);  // owned by this object
  // A small file, whole; it is in the manifest by itself.
  Status write_file(const std::string& name, std::span<const std::byte> bytes);

  // `manifest`: of that step. Its files: those of create_file, all written, with pieces; the others
  // are added here. kInvalidArgument: somebody has put something else in the folder's place, which
  // is left alone. Once: after a failure the folder can only go. Where the last fsync alone
  // failed, the checkpoint is there, and may be gone after a loss of power.
  Status publish(Manifest manifest);

 private:
  struct NewFile {
    UniqueFd fd;
    uint64_t bytes = 0;
  };

  NewFolder() = default;
  Result<UniqueFd> open_new(const std::string& name);
  Status sync_files();
  Status write_manifest(Manifest& manifest);
  Status check_named(const std::string& name) const;
  void give_access(int fd, unsigned most) const;
  void remove();

  UniqueFd parent_, folder_;
  std::string name_, tmp_name_;
  uint64_t step_ = 0;
  std::map<std::string, NewFile> files_;
  std::map<std::string, UniqueFd> subfolders_;
  std::vector<ManifestFile> small_files_;
  bool published_ = false;
  bool spent_ = false;  // publish() was called
};

}  // namespace elixir::checkpoints
