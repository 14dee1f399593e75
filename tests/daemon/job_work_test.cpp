// What one worker does with a slice, slice by slice: in the test's thread, or in two in turn.

#include "daemon/job_work.h"

#include <atomic>
#include <cstring>
#include <thread>

#include "base/compute_type_names.h"
#include "optim_cpu/master.h"
#include "shm/load_part.h"
#include "tests/daemon/bench.h"
#include "tests/support/matchers.h"

namespace elixir::daemon {
namespace {

using namespace testing;

constexpr ComputeType kTypes[] = {ComputeType::kFp32, ComputeType::kBf16, ComputeType::kFp16};

// All that recovery brings back: parameters, masters, moments. The redo records lie before them.
std::vector<std::byte> states_of(const Bench& bench, uint32_t rank) {
  const shm::Shape& shape = bench.model.shape;
  const SessionMemory& memory = *bench.memory[rank];
  std::vector<std::byte> all(memory.params().data(), memory.params().data() + shape.params_bytes());
  all.insert(all.end(), memory.state().data() + shape.master_offset(),
             memory.state().data() + shape.state_bytes());
  return all;
}

optim::StatePlace place_of(const Bench& bench, uint32_t rank, uint64_t index) {
  const uint64_t shard_numel = bench.model.shape.shard_numel();
  const auto chunk = static_cast<uint32_t>(index / shard_numel);
  const SessionMemory& memory = *bench.memory[rank];
  return {.param = memory.param(chunk, index % shard_numel),
          .master = memory.master(chunk, index % shard_numel),
          .moments = {memory.moment(0, chunk, index % shard_numel),
                      memory.moment(1, chunk, index % shard_numel)}};
}

// A kill between the stores of a vector: some of them are of the step before, or nothing.
void tear(ComputeType type, uint64_t numel, const optim::StatePlace& place) {
  std::memset(place.param, 0xa5, numel * element_bytes(type));
  if (place.master != nullptr) std::memset(place.master, 0xa5, numel * master_bytes(type));
  for (float* moment : place.moments) std::memset(moment, 0xa5, numel * sizeof(float));
}

// elixird's own records, at every instant between two slices: the vector that a worker wrote last
// is found by them and made whole, wherever it lies.
TEST(JobWork, ATornVectorIsMadeWholeByTheRecordOfItsWorker) {
  constexpr uint32_t kWorker = 3;
  for (const ComputeType type : kTypes) {
    SCOPED_TRACE(compute_type_name(type));
    // Slices whose last vector is short, and more than one of them a shard.
    Bench bench({.model = make_model(type, 2, 3, 128 * 5), .slice_numel = 100});
    bench.begin_step();
    for (const Slice& slice : bench.slices.by_group[0]) {
      ASSERT_TRUE(bench.work->run_slice(0, kWorker));
      const optim::RedoMark mark = must(optim::last_redo(*bench.memory[slice.rank]->redo(kWorker)));
      const uint64_t last_vector = (slice.numel - 1) / optim::kRedoVector * optim::kRedoVector;
      const std::vector<std::byte> whole = states_of(bench, slice.rank);
      tear(type, slice.numel - last_vector,
           place_of(bench, slice.rank,
                    slice.chunk * bench.model.shape.shard_numel() + slice.begin + last_vector));
      EXPECT_FALSE(states_of(bench, slice.rank) == whole) << "nothing was torn";
      optim::apply_redo(type, *bench.memory[slice.rank]->redo(kWorker),
                        place_of(bench, slice.rank, mark.index));
      ASSERT_TRUE(states_of(bench, slice.rank) == whole)
          << "chunk " << slice.chunk << " rank " << slice.rank << " from " << slice.begin;
    }
    EXPECT_FALSE(bench.work->run_slice(0, kWorker));
    const optim::RedoRecord empty{};
    for (const auto& memory : bench.memory) {
      EXPECT_EQ(std::memcmp(memory->redo(0), &empty, sizeof empty), 0) << "another's record";
    }
  }
}

// As in elixird. A worker's record is what costs the update its time.
TEST(JobWork, WritesNoRedoRecordsWhereNobodyAsksForThem) {
  const FakeModel model = make_model(ComputeType::kBf16, 2, 3, 128 * 5);
  Bench bench({.model = model, .redo_records = false}), recorded({.model = model});
  for (Bench* each : {&bench, &recorded}) {
    each->begin_step();
    while (each->work->run_slice(0, 0)) {
    }
  }
  const optim::RedoRecord empty{};
  for (uint32_t rank = 0; rank < model.shape.ranks; ++rank) {
    EXPECT_EQ(std::memcmp(bench.memory[rank]->redo(0), &empty, sizeof empty), 0);
    EXPECT_NE(std::memcmp(recorded.memory[rank]->redo(0), &empty, sizeof empty), 0);
    EXPECT_TRUE(states_of(bench, rank) == states_of(recorded, rank)) << "other bits";
  }
}

// Slices longer than the pieces in which weights are loaded.
TEST(JobWork, LoadsSlicesOfAnyLength) {
  for (const ComputeType type : kTypes) {
    SCOPED_TRACE(compute_type_name(type));
    Bench bench({.model = make_model(type, 2, 2, 128 * 70), .slice_numel = 1 << 20});
    const shm::Shape& shape = bench.model.shape;
    ASSERT_GT(bench.slices.by_group[0][0].numel, 4 * 1024u);
    const std::vector<std::vector<float>> values = testing::initial_values(bench.model);
    for (uint32_t chunk = 0; chunk < shape.n_chunks; ++chunk) {
      for (const shm::LoadPart part : shm::load_parts(type)) {
        shm::put_part(values[chunk].data(), shape.chunk_numel, part,
                      bench.grad_slot(0, shape.load_slot(chunk)));
        bench.work->begin_load(0, chunk, part);
        while (bench.work->run_slice(0, 0)) {
        }
      }
    }
    const testing::Reference reference(bench.model);
    for (const shm::ParameterPlace& place : bench.model.places) {
      const std::vector<float> masters = reference.masters(place.chunk);
      for (uint64_t i = place.offset; i < place.offset + place.numel; ++i) {
        const auto rank = static_cast<uint32_t>(i / shape.shard_numel());
        const uint64_t at = i % shape.shard_numel();
        float have = 0;
        optim::read_master(type, bench.memory[rank]->param(place.chunk, at),
                           bench.memory[rank]->master(place.chunk, at), 1, &have);
        ASSERT_EQ(have, masters[i]) << place.name << " element " << i - place.offset;
      }
    }
  }
}

// One worker completes all chunks but the last, another one the last and with it the step. Nothing
// but elixird's own words orders the two and who reads: the thread sanitizer sees what is missing.
TEST(JobWork, WhoeverSeesAStepFinishedSeesTheChunksOfAllWorkers) {
  const Bench::Options options = {.model = make_model(ComputeType::kFp32, 2, 3, 128 * 5)};
  Bench bench(options), alone(options);
  alone.begin_step();
  while (alone.work->run_slice(0, 0)) {
  }
  bench.begin_step();
  const shm::Shape& shape = bench.model.shape;
  std::atomic<bool> turn = false;  // relaxed: it orders nothing
  std::thread first([&] {
    for (const Slice& slice : bench.slices.by_group[0]) {
      if (slice.chunk + 1 == shape.n_chunks) break;
      EXPECT_TRUE(bench.work->run_slice(0, 0));
    }
    turn.store(true, std::memory_order_relaxed);
  });
  std::thread second([&] {
    while (!turn.load(std::memory_order_relaxed)) std::this_thread::yield();
    EXPECT_EQ(bench.work->chunks_left(), 1u);
    while (bench.work->run_slice(0, 1)) {
    }
  });
  for (uint32_t rank = 0; rank < shape.ranks; ++rank) {
    const SessionMemory& memory = *bench.memory[rank];
    while (memory.header().finished_step.load(std::memory_order_acquire) != 1) {
      std::this_thread::yield();
    }
    EXPECT_EQ(std::memcmp(memory.params().data(), alone.memory[rank]->params().data(),
                          shape.params_bytes()),
              0);
  }
  first.join();
  second.join();
}

}  // namespace
}  // namespace elixir::daemon
