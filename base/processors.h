#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace elixir {

// The processors that a process may run on (affinity and cpuset), ascending; never empty for this
// one (0), and empty for one that is gone. Sees up to 8192.
std::vector<int> usable_processors(pid_t process = 0);

// Binds the calling thread to the processors; advice, a refusal is ignored.
void bind_this_thread(const std::vector<int>& processors);

// Of the caches of the last level behind the processors, each once; 0 where the system does not
// tell. `root` is put before /sys, "" for the machine itself.
uint64_t last_level_cache_bytes(const std::vector<int>& processors, const std::string& root = "");

// This machine's; "" where the system does not tell.
std::string host_name();

}  // namespace elixir
