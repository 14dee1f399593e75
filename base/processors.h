#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace elixir {

// The processors this process may run on (affinity and cpuset), ascending; never empty. Sees up to
// 8192.
std::vector<int> usable_processors();

// Binds the calling thread to the processors; advice, a refusal is ignored.
void bind_this_thread(const std::vector<int>& processors);

// Of the caches of the last level behind the processors, each once; 0 where the system does not
// tell. `root` is put before /sys, "" for the machine itself.
uint64_t last_level_cache_bytes(const std::vector<int>& processors, const std::string& root = "");

// This machine's; "" where the system does not tell.
std::string host_name();

}  // namespace elixir
