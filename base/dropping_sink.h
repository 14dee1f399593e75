#pragma once

#include <spdlog/sinks/base_sink.h>

#include <cstdint>
#include <mutex>
#include <string_view>

#include "base/fd.h"

namespace elixir {

// Lines to a descriptor that never wait for who reads it: where a pipe, a terminal or a socket
// takes no more, a line is dropped and counted, and the next one that it takes says how many were.
// A file is written as ever: its file system alone can make that wait.
class DroppingSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  // A pipe or a terminal is opened once more, since what is set on a descriptor counts for all
  // processes that have it. Where the system refuses that (another user's pipe), each line asks
  // first whether there is room: it can wait only where another process takes that room in between.
  // `fd` is borrowed.
  explicit DroppingSink(int fd);

 private:
  enum class Way {
    kWrite,     // a file
    kSend,      // a socket
    kNever,     // opened once more: never waits
    kAskFirst,  // could not be
  };

  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override {}
  bool write_line(std::string_view line);

  int fd_;
  Way way_ = Way::kWrite;
  UniqueFd opened_;
  uint64_t dropped_ = 0;  // since the last line that was taken
};

}  // namespace elixir
