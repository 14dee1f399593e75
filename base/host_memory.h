#pragma once

#include <cstdint>
#include <string>

namespace elixir {

// The tightest limit on this process's memory, with a name for messages.
struct MemoryRoom {
  uint64_t available_bytes = 0;
  std::string limit;  // "MemAvailable of this machine", "memory.max of cgroup /a/b"
};

// ELIXIR_MEMORY_ROOM in bytes ("120GiB"; elixird's own setting is memory_room). It is for virtual
// machines whose memory grows with use, where MemAvailable and MemTotal are far too low. Returns 0
// if it is not set, or, with a line in the log, if it is not a number of bytes.
uint64_t free_memory_setting();

// The least of MemAvailable and, for the process's memory cgroup (version 1 or 2) and each of its
// parents, limit minus usage. Page cache that the kernel would drop counts as free. A file that
// cannot be read sets no limit. `root` is put before /proc and /sys, "" for the machine itself.
// `free_bytes`: the machine's free memory where MemAvailable is too low.
MemoryRoom memory_room(const std::string& root = "", uint64_t free_bytes = free_memory_setting());

// The least of MemTotal (or free_memory_setting(), if that is more) and the limits of the cgroups.
// Unlike the room it does not change while memory is used, so processes that must agree can ask for
// it. `process`: a pid, whose groups count.
MemoryRoom memory_capacity(const std::string& root = "", const std::string& process = "self");

// The control group that a process's memory is charged to ("/slurm/job_7"; the one of version 1 if
// both are mounted); "" if the system does not tell. `process`: a pid.
std::string memory_group(const std::string& root = "", const std::string& process = "self");

// Bytes that the whole machine has in swap.
uint64_t used_swap_bytes(const std::string& root = "");

}  // namespace elixir
