#pragma once

// A file that appears under its name whole or not at all, and never replaces another. It is written
// beside its place as PATH.partial-PID, synced, then renamed.

#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/status.h"

namespace elixir::checkpoints {

inline constexpr std::string_view kPartial = ".partial-";

// kInvalidArgument if the path exists. For callers that have much to do before they write.
Status check_new_file(const std::string& path);

class NewFile {
 public:
  // Errors as of check_new_file() and write_status().
  static Result<NewFile> create(const std::string& path);
  NewFile(NewFile&&) noexcept = default;
  // Removes it, unless it was published.
  ~NewFile();

  int fd() const { return fd_.get(); }
  // Call it once, when all is written.
  Status publish();

 private:
  NewFile() = default;

  UniqueFd parent_, fd_;
  std::string name_, partial_name_;
  bool published_ = false;
};

}  // namespace elixir::checkpoints
