#pragma once

// Calls on open folders that writing, listing and removing checkpoints share. Names are relative to
// a descriptor and no symbolic link is followed.

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "base/status.h"

namespace elixir::checkpoints {

// The path of an open descriptor, for messages.
std::string path_of(int fd);

// The error of a call that makes or changes files: "what: strerror(errno)", and the fix.
// kResourceExhausted: the disk or the quota is full. kInvalidArgument: the folder is not writable.
// kInternal: the device failed, or any other error.
Status write_status(const std::string& what);

// Writes all bytes, in as many calls as needed. kResourceExhausted: the disk is full.
Status write_all(int fd, std::span<const std::byte> bytes, uint64_t offset);
// Writes the parts one after another; none may be empty. It overwrites `parts`.
Status write_all(int fd, std::span<iovec> parts, uint64_t offset);

// Opens the folder again, with a descriptor that can read and sync it, even if `folder` was opened
// with O_PATH. kInvalidArgument: it is not readable.
Result<UniqueFd> open_again(int folder);

// A failed fsync is not tried again, because nobody knows what was lost. Some file systems cannot
// sync a folder and say so; that is not an error.
Status sync_file(int fd);
Status sync_folder(int folder);

// kInvalidArgument: the name is taken.
Status check_not_taken(int parent, const std::string& name);
// Renames, but never replaces anything: kInvalidArgument if `to` exists. If the file system has no
// RENAME_NOREPLACE (NFS), it checks this just before the rename.
Status rename_to_new(int parent, const std::string& from, const std::string& to);

// Returns an invalid descriptor, and sets errno, if there is no such folder or it is a link.
UniqueFd open_subfolder(int parent, const std::string& name);

// Whether `name` still leads to that open folder, and not to a link or another folder in its place.
bool is_named(int parent, const std::string& name, int folder);

// Its entries except "." and "..", in no order. kBadInput: the folder cannot be read.
Result<std::vector<std::string>> names_in(int folder);

// Removes a folder with its files and subfolders, down to `levels` levels of folders. A checkpoint
// has two; anything deeper makes the call fail.
Status remove_folder(int parent, const std::string& name, int levels = 2);

// Names of a checkpoint's folder while it is written, and before it is removed.
inline constexpr std::string_view kUnfinished = ".tmp-";
std::string unfinished_name(const std::string& name, const std::string& tag);  // NAME.tmp-TAG
std::string deleting_name(const std::string& name);                            // .deleting-NAME

// kInvalidArgument if a checkpoint of this name would be mistaken for something else. This is a
// lock, an unfinished checkpoint, one being removed, or a file that makes its parent look like a
// checkpoint or a model.
Status check_not_reserved(std::string_view name);

// The tag of a folder that elixird writes for a job, and whether an entry's name has such a tag.
std::string save_tag(int pid, uint64_t job);
bool is_unfinished_save(const std::string& entry);

// Whether a folder's entry was left by a save of `name`, or by a save or removal of any step-*.
bool is_left_over(const std::string& entry, const std::string& name);

}  // namespace elixir::checkpoints
