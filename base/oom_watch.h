#pragma once

#include <cstdint>
#include <string>

namespace elixir {

// Tells whether the kernel's out-of-memory killer has ended a process of a control group. The
// killer sends SIGKILL, so its victim says nothing. The group's memory.events (version 2) or
// memory.oom_control (version 1) counts victims, and /proc/vmstat counts those of the machine.
class OomWatch {
 public:
  // Watches the group of `process` (a pid) from now on. `root` is put before /proc and /sys.
  explicit OomWatch(const std::string& process = "self", std::string root = "");

  // For a message about a process of the group that has ended: the group that had no memory left,
  // its limit, and the remedy. "" if the killer has ended nobody there since construction.
  std::string verdict() const;

 private:
  uint64_t victims() const;

  std::string root_;
  std::string counter_;  // the file that counts victims
  std::string group_;    // "" if only the machine's victims are counted
  std::string limit_;    // the group's limit, for people
  uint64_t before_ = 0;
};

}  // namespace elixir
