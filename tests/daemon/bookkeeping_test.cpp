// What the event loop does for a step of many ranks and chunks. How long that takes is
// bench_bookkeeping's.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utility>

#include "base/check.h"
#include "tests/daemon/job_fixture.h"

namespace elixir::testing {
namespace {

constexpr uint32_t kRanks = 64, kChunks = 500;

// Who touches a page that lies within [data, data + bytes) ends with the process.
void close_memory(std::byte* data, uint64_t bytes) {
  const auto page_bytes = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(data) + page_bytes - 1) / page_bytes * page_bytes;
  const auto end = (reinterpret_cast<uintptr_t>(data) + bytes) / page_bytes * page_bytes;
  ELIXIR_CHECK(begin < end, "no page within {} bytes", bytes);
  ELIXIR_CHECK(::mprotect(reinterpret_cast<void*>(begin), end - begin, PROT_NONE) == 0, "mprotect");
}

// The words of all chunks, of gradients and updates alike, and what they speak of.
void close_chunks(const daemon::SessionMemory& memory, uint32_t n_chunks) {
  close_memory(reinterpret_cast<std::byte*>(&memory.chunk_record(0)),
               n_chunks * sizeof(shm::ChunkRecord));
  close_memory(reinterpret_cast<std::byte*>(&memory.grad_record(0)),
               n_chunks * sizeof(shm::GradRecord));
  for (const shm::Segment* segment : {&memory.grads(), &memory.params(), &memory.state()}) {
    close_memory(segment->data(), segment->bytes());
  }
}

// One word a rank says that it is skipped: the event loop does nothing for each chunk and rank.
TEST(BookkeepingDeathTest, OfASkippedStepAndATickNoWordOfAChunkIsTouched) {
  InProcessJob::Options options{.model = make_model(ComputeType::kFp32, kRanks, kChunks, 128),
                                .norms = true};
  options.model.poison_step = 1;
  InProcessJob world(std::move(options));
  world.start();
  shm::StepRecord record = make_record(1, kRanks);
  record.check_finite = 1;
  for (uint32_t rank = 0; rank < kRanks; ++rank) world.write_grads(rank, 1);
  for (uint32_t rank = 0; rank < kRanks; ++rank) world.post(rank, record);
  ASSERT_NE(world.ports.submitted, nullptr);
  while (world.ports.submitted->run_slice(0, 0)) {
  }
  world.ports.submitted = nullptr;
  const auto skip = [&] {
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      close_chunks(*world.rank(rank).memory, kChunks);
    }
    world.job.work_done();
    world.job.look_at_everything();
    bool all = world.job.statistics().skipped == 1;
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      all = all && world.header(rank).skipped_through.load() == 1;
    }
    std::_Exit(all ? 0 : 1);
  };
  EXPECT_EXIT(skip(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace elixir::testing
