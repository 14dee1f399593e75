#pragma once

#include <string>
#include <vector>

namespace elixir {

// The processors this process may run on (affinity and cpuset), ascending; never empty. Sees up to
// 8192.
std::vector<int> usable_processors();

// Binds the calling thread to the processors; advice, a refusal is ignored.
void bind_this_thread(const std::vector<int>& processors);

// This machine's; "" where the system does not tell.
std::string host_name();

}  // namespace elixir
