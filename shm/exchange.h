#pragma once

#include <cstdint>

namespace elixir::shm {

// How ranks share gradients and parameters. With kHost, all ranks are on one node. Each passes its
// gradients of whole chunks to elixird, which sums them. With kCollective, the trainers sum among
// themselves, and each rank passes the sum of its shard.
enum class Exchange : uint32_t { kHost = 0, kCollective = 1 };

}  // namespace elixir::shm
