#pragma once

// A file that appears under its name whole or not at all, and never over another: written beside it
// as PATH.partial-PID, synced, renamed.

#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/status.h"

namespace elixir::checkpoints {

inline constexpr std::string_view kPartial = ".partial-";

// kInvalidArgument: there is something of this name. For who has much to do before he writes.
Status check_new_file(const std::string& path);

class NewFile {
 public:
  // As check_new_file; else as write_status.
  static Result<NewFile> create(const std::string& path);
  NewFile(NewFile&&) noexcept = default;
  // Removes it, unless it was published.
  ~NewFile();

  int fd() const { return fd_.get(); }
  // Once, when all is written.
  Status publish();

 private:
  NewFile() = default;

  UniqueFd parent_, fd_;
  std::string name_, partial_name_;
  bool published_ = false;
};

}  // namespace elixir::checkpoints
