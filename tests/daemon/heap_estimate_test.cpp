#include "daemon/heap_estimate.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <memory>
#include <string>
#include <utility>

#include "shm/parameter_table.h"
#include "tests/daemon/job_fixture.h"
#include "tests/support/sanitized.h"

namespace elixir::daemon {
namespace {

constexpr uint64_t kSliceNumel = 65536;

uint64_t used_bytes() {
  const struct mallinfo2 now = ::mallinfo2();
  return now.uordblks + now.hblkhd;
}

struct Size {
  std::string what;
  uint32_t ranks = 1;
  uint32_t chunks = 1;
  uint64_t chunk_numel = 4096;
  uint32_t parameters_of_chunk = 1;
  uint32_t frozen_chunks = 0;
  shm::Exchange exchange = shm::Exchange::kHost;
  uint32_t worker_groups = 1;
};

Job::Options job_of(const Size& size) {
  Job::Options job;
  job.name = "large";
  job.local_ranks = size.ranks;
  job.shape.exchange = size.exchange;
  job.shape.ranks = size.ranks;
  job.shape.n_chunks = size.chunks;
  job.shape.n_frozen_chunks = size.frozen_chunks;
  job.shape.chunk_numel = size.chunk_numel;
  job.shape.n_parameters = size.chunks * size.parameters_of_chunk;
  const uint64_t numel = size.chunk_numel / size.parameters_of_chunk;
  for (uint32_t i = 0; i < (size.chunks + size.frozen_chunks) * size.parameters_of_chunk; ++i) {
    shm::ParameterPlace place;
    place.name = "transformer.layers.attention.weight." + std::to_string(i);
    place.chunk = i / size.parameters_of_chunk;
    place.offset = i % size.parameters_of_chunk * numel;
    place.numel = numel;
    job.places.push_back(place);
    job.table.bytes += 24 + place.name.size();
  }
  return job;
}

// As far as a job comes without its ranks' memory: all of them attached, its work cut into slices,
// and every chunk's values waiting to be taken.
std::unique_ptr<Job> job_at_its_largest(const Size& size, testing::FakePorts* ports) {
  auto job = std::make_unique<Job>(job_of(size), ports);
  for (uint32_t rank = 0; rank < size.ranks; ++rank) {
    Session session;
    session.rank = session.local_rank = rank;
    session.worker_group = rank % size.worker_groups;
    EXPECT_TRUE(job->claim(std::move(session)).ok());
  }
  for (const auto& session : job->sessions()) job->attached(*session);
  job->begin_work(std::vector<uint32_t>(size.worker_groups, 2), kSliceNumel);
  const uint32_t loaders = size.exchange == shm::Exchange::kHost ? 1 : size.ranks;
  for (uint32_t rank = 0; rank < loaders; ++rank) {
    for (uint32_t chunk = 0; chunk < size.chunks; ++chunk) {
      shm::LoadChunk message{};
      message.chunk = chunk;
      EXPECT_TRUE(job->load_chunk(*job->sessions()[rank], message).ok());
    }
  }
  return job;
}

TEST(HeapEstimate, IsAboveWhatAJobTakesButNotByMuch) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer's allocator does not count";
  const Size sizes[] = {
      {.what = "chunks", .chunks = 20000},
      {.what = "chunks and ranks", .ranks = 64, .chunks = 20000},
      {.what = "groups of workers", .ranks = 8, .chunks = 20000, .worker_groups = 8},
      {.what = "slices", .ranks = 4, .chunks = 100, .chunk_numel = 1ull << 26},
      {.what = "parameters", .chunks = 100, .parameters_of_chunk = 1000},
      {.what = "frozen chunks", .chunks = 100, .frozen_chunks = 20000},
      {.what = "the collective exchange",
       .ranks = 8,
       .chunks = 20000,
       .exchange = shm::Exchange::kCollective}};
  for (const Size& size : sizes) {
    testing::FakePorts ports;
    const uint64_t before = used_bytes();
    const std::unique_ptr<Job> job = job_at_its_largest(size, &ports);
    const uint64_t taken = used_bytes() - before;
    const uint64_t estimate = heap_bytes(job->options(), kSliceNumel);
    EXPECT_GE(estimate, taken) << size.what;
    EXPECT_LE(estimate, 3 * taken) << size.what;
  }
}

}  // namespace
}  // namespace elixir::daemon
