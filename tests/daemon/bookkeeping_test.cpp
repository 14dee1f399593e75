#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "shm/futex.h"
#include "tests/daemon/job_fixture.h"
#include "tests/support/sanitized.h"

namespace elixir::testing {
namespace {

constexpr uint32_t kRanks = 64, kChunks = 500;
constexpr int kRounds = 5;

template <typename Function>
int64_t duration_ns(const Function& function) {
  const int64_t begin_ns = monotonic_ns();
  function();
  return monotonic_ns() - begin_ns;
}

// What a system call that wakes nobody would take for each chunk and rank, here and now.
int64_t system_calls_ns() {
  const std::atomic<uint32_t> word{0};
  return duration_ns([&] {
    for (uint32_t i = 0; i < kRanks * kChunks; ++i) shm::futex_wake_all(word);
  });
}

// Of a step of many ranks and chunks elixird looks at what all have published, hands out the chunks
// and tells every rank of each. Of 64 ranks and 10,000 chunks a quarter of a second was once spent
// in system calls for nobody, and more in words that had not moved. Held against system calls of
// the same moment, since a machine may be slow.
TEST(Bookkeeping, OfAStepIsLessThanASystemCallAChunkAndRank) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own work would be measured";
  InProcessJob world({.model = make_model(ComputeType::kFp32, kRanks, kChunks, 128)});
  world.start();
  int64_t posts_ns = INT64_MAX, updates_ns = INT64_MAX, tick_ns = INT64_MAX, calls_ns = INT64_MAX;
  for (uint32_t step = 1; step <= kRounds; ++step) {
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      world.write_grads(rank, step);
      world.write_record(rank, make_record(step, kRanks));
      world.header(rank).posted_step.store(step);
    }
    posts_ns = std::min(posts_ns, duration_ns([&] {
                          for (uint32_t rank = 0; rank < kRanks; ++rank) {
                            world.job.look_at_posted(world.rank(rank));
                          }
                        }));
    updates_ns = std::min(updates_ns, duration_ns([&] { world.run_workers(); }));
    ASSERT_EQ(world.header(0).finished_step.load(), step);
    tick_ns = std::min(tick_ns, duration_ns([&] { world.job.look_at_everything(); }));
    calls_ns = std::min(calls_ns, system_calls_ns());
  }
  RecordProperty("posts_us", static_cast<int>(posts_ns / 1000));
  RecordProperty("updates_us", static_cast<int>(updates_ns / 1000));
  RecordProperty("tick_us", static_cast<int>(tick_ns / 1000));
  RecordProperty("system_calls_us", static_cast<int>(calls_ns / 1000));
  EXPECT_LT(posts_ns, calls_ns / 4);
  EXPECT_LT(updates_ns, calls_ns * 2);  // arithmetic on the gradients of all ranks included
  EXPECT_LT(tick_ns, calls_ns / 50);
}

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
