#pragma once

#include <cstdint>
#include <string>

namespace elixir {

// The tightest of the limits on this process's memory, as a number and a name for people.
struct MemoryRoom {
  uint64_t available_bytes = 0;
  std::string limit;  // "MemAvailable of this machine", "memory.max of cgroup /a/b"
};

// ELIXIR_MEMORY_ROOM in bytes ("120GiB"; elixird's own setting is memory_room): on a virtual
// machine whose memory grows with use MemAvailable and MemTotal lie far too low. 0 where it is not
// set, or, with a line in the log, no number of bytes.
uint64_t free_memory_setting();

// The least of MemAvailable and, for the process's memory cgroup (version 1 or 2) and each of its
// parents, limit less usage; page cache that the kernel would drop counts as free. `root` is put
// before /proc and /sys, "" for the machine itself. What cannot be read is no limit.
// `free_bytes`: what the machine has free where MemAvailable says less than the truth.
MemoryRoom memory_room(const std::string& root = "", uint64_t free_bytes = free_memory_setting());

// The least of MemTotal, or free_memory_setting() where that is more, and the limits of the
// cgroups. Unlike the room it stays as it is while memory is used: processes that must agree may
// ask.
MemoryRoom memory_capacity(const std::string& root = "");

// The control group that the memory of a process is charged to ("/slurm/job_7"; of version 1 where
// both are mounted); "" where the system does not tell. `process`: a pid.
std::string memory_group(const std::string& root = "", const std::string& process = "self");

// Of the machine: what lies in swap.
uint64_t used_swap_bytes(const std::string& root = "");

}  // namespace elixir
