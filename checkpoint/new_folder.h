#pragma once

// A checkpoint while it is written: NAME.tmp-TAG, beside the place of NAME. It appears under its
// name whole or not at all. The order is: files, fsync, their folders, the manifest, fsync, the
// folder, rename, fsync of the parent. A failed fsync is not tried again, because nobody knows what
// it lost.

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
  // Makes NAME.tmp-TAG in the open folder `parent`. First it removes what others left there:
  // NAME.tmp-*, step-*.tmp-*, .deleting-step-*. So its caller holds lock_folder(parent).
  // kInvalidArgument: `name` has a slash, is_file_name() or check_not_reserved() does not allow it,
  // it is taken, or it is that of another step; or `parent` cannot be read. Other errors as of
  // write_status(): kResourceExhausted for a full disk.
  static Result<NewFolder> create(int parent, const std::string& name, uint64_t step,
                                  const std::string& tag);
  NewFolder(NewFolder&&) noexcept;
  NewFolder& operator=(NewFolder&&) noexcept;
  // Removes it, unless it was published.
  ~NewFolder();

  // Makes a file of `bytes` bytes, which are reserved if the file system can do that. Any thread
  // may write it. The caller hashes its pieces and passes them to publish().
  Result<int> create_file(const std::string& name, uint64_t bytes);  // owned by this object
  // Writes a small file whole and adds it to the manifest.
  Status write_file(const std::string& name, std::span<const std::byte> bytes);

  // `manifest` is of the step given to create(). It lists the files of create_file(), all written,
  // with pieces; the others are added here. Call it once: after a failure the folder can only be
  // removed. kInvalidArgument: somebody has put something else in the folder's place, which is left
  // alone. If only the last fsync failed, the checkpoint exists, but a loss of power may remove it.
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
