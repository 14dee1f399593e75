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
  // processes that have it; where the system refuses that, writing to it may wait. `fd` is
  // borrowed.
  explicit DroppingSink(int fd);

 private:
  enum class Way { kWrite, kSend };

  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override {}
  bool write_line(std::string_view line);

  int fd_;
  Way way_ = Way::kWrite;
  UniqueFd opened_;
  uint64_t dropped_ = 0;  // since the last line that was taken
};

}  // namespace elixir
