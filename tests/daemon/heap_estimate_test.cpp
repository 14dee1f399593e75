#include "daemon/heap_estimate.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include "daemon/job_work.h"
#include "daemon/slices.h"
#include "shm/parameter_table.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ELIXIR_OTHER_ALLOCATOR 1
#else
#define ELIXIR_OTHER_ALLOCATOR 0
#endif

namespace elixir::daemon {
namespace {

uint64_t used_bytes() {
  const struct mallinfo2 now = ::mallinfo2();
  return now.uordblks + now.hblkhd;
}

Job::Options many_chunks(uint32_t ranks, uint32_t chunks, uint64_t chunk_numel) {
  Job::Options job;
  job.name = "large";
  job.shape.ranks = job.local_ranks = ranks;
  job.shape.n_chunks = chunks;
  job.shape.chunk_numel = chunk_numel;
  for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
    shm::ParameterPlace place;
    place.name = "transformer.layers.attention.weight." + std::to_string(chunk);
    place.chunk = chunk;
    place.numel = chunk_numel;
    job.places.push_back(place);
    job.table_bytes += 24 + place.name.size();
  }
  return job;
}

TEST(HeapEstimate, IsAboveWhatAJobTakesButNotByMuch) {
  if (ELIXIR_OTHER_ALLOCATOR != 0) GTEST_SKIP() << "the sanitizer's allocator does not count";
  for (const auto& [ranks, chunks, numel] :
       {std::tuple{1u, 20000u, 4096ull}, std::tuple{64u, 20000u, 4096ull},
        std::tuple{4u, 100u, 1ull << 26}}) {
    const Job::Options options = many_chunks(ranks, chunks, numel);
    constexpr uint64_t kSliceNumel = 65536;
    const uint64_t before = used_bytes();
    const Job job(options, nullptr);
    std::vector<uint64_t> used(chunks, numel);
    std::vector<uint32_t> shards, groups(ranks, 0);
    for (uint32_t rank = 0; rank < ranks; ++rank) shards.push_back(rank);
    const SliceTable slices =
        cut_slices(options.shape, used, kSliceNumel, {shards, groups}, /*n_groups=*/1);
    const uint64_t taken = used_bytes() - before;
    const uint64_t estimate = heap_bytes(options, kSliceNumel);
    EXPECT_GE(estimate, taken) << ranks << " ranks, " << chunks << " chunks";
    EXPECT_LE(estimate, 4 * taken) << ranks << " ranks, " << chunks << " chunks";
  }
}

}  // namespace
}  // namespace elixir::daemon
