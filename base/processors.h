#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace elixir {

// The processors that a process may run on (affinity and cpuset), ascending. Never empty for this
// process (0); empty for a process that is gone. Sees up to 8192 processors.
std::vector<int> usable_processors(pid_t process = 0);

// Binds the calling thread to the processors. This is advice: a failure is ignored.
void bind_this_thread(const std::vector<int>& processors);

// Total bytes of the last-level caches of these processors, each cache counted once; 0 if the
// system does not tell. `root` is put before /sys, "" for the machine itself.
uint64_t last_level_cache_bytes(const std::vector<int>& processors, const std::string& root = "");

// This machine's name; "" if the system does not tell.
std::string host_name();

}  // namespace elixir
