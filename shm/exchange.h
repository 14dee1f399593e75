#pragma once

#include <cstdint>

namespace elixir::shm {

// How ranks share chunks. kHost: all on one node; every rank brings its gradients of whole chunks
// to elixird, which sums them. kCollective: the trainers sum among themselves, and a rank brings
// its shard's sum.
enum class Exchange : uint32_t { kHost = 0, kCollective = 1 };

}  // namespace elixir::shm
