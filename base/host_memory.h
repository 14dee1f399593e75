#pragma once

#include <cstdint>
#include <string>

namespace elixir {

// The tightest limit on this process's memory, with a name for messages.
struct MemoryRoom {
  uint64_t available_bytes = 0;
  std::string limit;  // "MemAvailable of this machine", "memory.max of cgroup /a/b"
};

// Reads ELIXIR_MEMORY_ROOM as bytes ("120GiB"; elixird's own setting is memory_room). It is for
// virtual machines whose memory grows with use: there MemAvailable and MemTotal are far too low.
// Returns 0 if it is not set, or, with a line in the log, if it is not a number of bytes.
uint64_t free_memory_setting();

// The least of MemAvailable and of limit minus usage for the process's memory cgroup (version 1 or
// 2) and each of its parents. Page cache that the kernel would drop counts as free. A file that
// cannot be read sets no limit. `root` is put before /proc and /sys; "" means the machine itself.
// `free_bytes`: the machine's free memory if MemAvailable is too low.
MemoryRoom memory_room(const std::string& root = "", uint64_t free_bytes = free_memory_setting());

// The least of MemTotal (or free_memory_setting(), if that is more) and the limits of the cgroups
// of `process`, a pid. Unlike the room it does not change while memory is used. So processes that
// must agree can ask for it.
MemoryRoom memory_capacity(const std::string& root = "", const std::string& process = "self");

// The control group to which a process's memory is charged ("/slurm/job_7"). If both versions are
// mounted, it is the group of version 1. "" if the system does not tell. `process`: a pid.
std::string memory_group(const std::string& root = "", const std::string& process = "self");

// Bytes of swap that the whole machine uses.
uint64_t used_swap_bytes(const std::string& root = "");

}  // namespace elixir
