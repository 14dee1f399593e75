#pragma once

#include <vector>

namespace elixir {

// The processors this process may run on (affinity and cpuset), ascending; never empty. Sees up to
// 8192.
std::vector<int> usable_processors();

}  // namespace elixir
