#pragma once

#include <spdlog/sinks/base_sink.h>

#include <cstdint>
#include <mutex>
#include <string_view>

#include "base/fd.h"

namespace elixir {

// Writes lines to a descriptor and never waits for its reader. If a pipe, a terminal or a socket is
// full, it drops and counts the line, and the next line that fits tells the count. It writes to a
// file as usual: only the file system can make that wait.
class DroppingSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  // Opens a pipe or a terminal again, because settings of a descriptor apply to all processes that
  // share it. If the system does not allow that (another user's pipe), each line first asks whether
  // there is room. It can then wait only if another process takes that room in between. `fd` is
  // borrowed.
  explicit DroppingSink(int fd);

 private:
  enum class Way {
    kWrite,     // a file
    kSend,      // a socket
    kNever,     // opened again: never waits
    kAskFirst,  // could not be opened again
  };

  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override {}
  bool write_line(std::string_view line);

  int fd_;
  Way way_ = Way::kWrite;
  UniqueFd opened_;
  uint64_t dropped_ = 0;  // since the last line that was written
};

}  // namespace elixir
