#include "daemon/heap_estimate.h"

#include <algorithm>

#include "daemon/job_work.h"
#include "daemon/slices.h"

namespace elixir::daemon {
namespace {

// Adam's constants of a part of a parameter: with their key, in a map, and its node, in a list.
constexpr uint64_t kPartBytes = sizeof(optim::AdamStep) + 56;
// A chunk's note in the tracker, its task (of the job, twice, of the work), progress, squares; its
// slot, here and in a save, its early update, and its places in a save's lists; what is known of it
// as a later part of a parameter.
constexpr uint64_t kChunkBytes =
    56 + 3 * sizeof(ChunkTask) + 16 + 4 * shm::kCacheLine + 64 + 40 + kPartBytes;
// Of a frozen one, too: its places in the slice table, what is loaded of it, a load on its way.
constexpr uint64_t kKeptChunkBytes = 24 + sizeof(Load);
constexpr uint64_t kChunkAndRankBytes = sizeof(Publication) + 2 * sizeof(uint32_t);
// Vectors grow by doubling.
constexpr uint64_t kSliceBytes = 2 * sizeof(Slice) + sizeof(uint32_t);
// The name beside; twice, since it is decoded from the table.
constexpr uint64_t kPlaceBytes = 2 * sizeof(shm::ParameterPlace) + 64 + kPartBytes;

}  // namespace

uint64_t heap_bytes(const Job::Options& job, uint64_t slice_numel) {
  const shm::Shape& shape = job.shape;
  const uint64_t kept_chunks = uint64_t{shape.n_chunks} + shape.n_frozen_chunks;
  const uint64_t ranks = job.local_ranks;
  const uint64_t slices_of_shard = shape.shard_numel() / std::max<uint64_t>(1, slice_numel) + 1;
  return shape.n_chunks * (kChunkBytes + ranks * kChunkAndRankBytes) +
         kept_chunks * (kKeptChunkBytes + ranks * slices_of_shard * kSliceBytes) +
         job.places.size() * kPlaceBytes + 2 * job.table.bytes;
}

}  // namespace elixir::daemon
