#pragma once

// Calls on open folders, which writing, listing and removing checkpoints have in common. Names are
// relative to a descriptor and no symbolic link is followed.

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

// What a descriptor was opened as, for messages.
std::string path_of(int fd);

// "what: strerror(errno)" of a call that makes or changes files, and what mends it.
// kResourceExhausted: the disk or the quota is full; kInvalidArgument: the folder is not writable;
// kInternal: the device failed, and all else.
Status write_status(const std::string& what);

// Writes all of it, whatever a call takes at a time. kResourceExhausted: the disk is full.
Status write_all(int fd, std::span<const std::byte> bytes, uint64_t offset);
// One behind another, none of them empty. What the parts say is gone afterwards.
Status write_all(int fd, std::span<iovec> parts, uint64_t offset);

// The same folder by a descriptor that reads and syncs it, whatever `folder` was opened for
// (O_PATH). kInvalidArgument: it is not readable.
Result<UniqueFd> open_again(int folder);

// An fsync that failed is not tried again: what it lost nobody knows. Some file systems cannot sync
// a folder and say so; what they keep of it is their affair.
Status sync_file(int fd);
Status sync_folder(int folder);

// kInvalidArgument: there is something of this name.
Status check_not_taken(int parent, const std::string& name);
// Not over anything: kInvalidArgument then. On file systems that know no RENAME_NOREPLACE (NFS),
// not over anything that was there a moment before.
Status rename_to_new(int parent, const std::string& from, const std::string& to);

// Not valid, with errno: none, or a link.
UniqueFd open_subfolder(int parent, const std::string& name);

// Whether what is called so is that open folder: neither a link to it nor another in its place.
bool is_named(int parent, const std::string& name, int folder);

// Without "." and "..", in no order. kBadInput: it cannot be read.
Result<std::vector<std::string>> names_in(int folder);

// Removes a folder with its files and those of its subfolders, which is as deep as a checkpoint
// goes. Only the first so many of `levels`: what lies deeper makes it fail.
Status remove_folder(int parent, const std::string& name, int levels = 2);

// Where a checkpoint stands while it is made, and before it is removed.
inline constexpr std::string_view kUnfinished = ".tmp-";
std::string unfinished_name(const std::string& name, const std::string& tag);  // NAME.tmp-TAG
std::string deleting_name(const std::string& name);                            // .deleting-NAME

// kInvalidArgument: a checkpoint of this name would be taken for something else: a lock, what is
// not whole yet or goes, or a file that makes its parent look like a checkpoint or a model.
Status check_not_reserved(std::string_view name);

// The tag of what elixird writes for a job, and whether an entry's name has such a one.
std::string save_tag(int pid, uint64_t job);
bool is_unfinished_save(const std::string& entry);

// Whether a folder's entry was left by a save of `name`, or by a save or removal of any step-*.
bool is_left_over(const std::string& entry, const std::string& name);

}  // namespace elixir::checkpoints
