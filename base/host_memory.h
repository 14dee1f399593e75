#pragma once

#include <cstdint>
#include <string>

namespace elixir {

// The tightest of the limits on this process's memory, as a number and a name for people.
struct MemoryRoom {
  uint64_t available_bytes = 0;
  std::string limit;  // "MemAvailable of this machine", "memory.max of cgroup /a/b"
};

// The least of MemAvailable and, for the process's memory cgroup (version 1 or 2) and each of its
// parents, limit less usage; page cache that the kernel would drop counts as free. `root` is put
// before /proc and /sys, "" for the machine itself. What cannot be read is no limit.
MemoryRoom memory_room(const std::string& root = "");

}  // namespace elixir
