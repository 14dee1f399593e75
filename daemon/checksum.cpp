#include "daemon/checksum.h"

#include <xxhash.h>

#include <algorithm>
#include <memory>

#include "optim_cpu/master.h"

namespace elixir::daemon {

uint64_t masters_xxh64(const shm::Shape& shape, std::span<const shm::ParameterPlace> places,
                       std::span<const SessionMemory* const> ranks) {
  constexpr uint64_t kPieceNumel = 4096;
  float values[kPieceNumel];
  const std::unique_ptr<XXH64_state_t, decltype(&XXH64_freeState)> hash(XXH64_createState(),
                                                                        &XXH64_freeState);
  XXH64_reset(hash.get(), 0);
  for (const shm::ParameterPlace& place : places) {
    const uint64_t end = place.offset + place.numel;
    for (uint64_t at = place.offset; at < end;) {
      const auto rank = static_cast<uint32_t>(at / shape.shard_numel());
      const uint64_t in_shard = at - shape.shard_begin(rank);
      const uint64_t numel = std::min({kPieceNumel, end - at, shape.shard_end(rank) - at});
      optim::read_master(shape.type, ranks[rank]->param(place.chunk, in_shard),
                         ranks[rank]->master(place.chunk, in_shard), numel, values);
      XXH64_update(hash.get(), values, numel * sizeof(float));
      at += numel;
    }
  }
  return XXH64_digest(hash.get());
}

}  // namespace elixir::daemon
