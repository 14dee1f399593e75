// What a job's events cost, counted: calls of operator new, and locks.

#include <pthread.h>

#include "tests/daemon/saving_job.h"
#include "tests/support/allocations.h"

namespace {

thread_local uint64_t locks_taken = 0;  // that this thread has taken

}  // namespace

extern "C" int __real_pthread_mutex_lock(pthread_mutex_t* mutex);
extern "C" int __wrap_pthread_mutex_lock(pthread_mutex_t* mutex) {
  ++locks_taken;
  return __real_pthread_mutex_lock(mutex);
}

namespace elixir::daemon {
namespace {

using namespace testing;

// More than a block of any container holds: none that grows is missed.
constexpr uint32_t kCountedChunks = 300;
constexpr uint32_t kCountedRanks = 2;
constexpr uint32_t kCountedSpareSlots = 150;

struct CountedMode {
  const char* name;
  uint32_t accumulate = 1, immediate = 0, norms = 0, early = 0;
};
constexpr CountedMode kCountedModes[] = {{.name = "Deferred"},
                                         {.name = "Sums", .accumulate = 2},
                                         {.name = "Norms", .norms = 1},
                                         {.name = "Immediate", .immediate = 1},
                                         {.name = "Early", .early = 1}};

SavingJob::Options options_of(const CountedMode& mode) {
  FakeModel model = make_model(ComputeType::kBf16, kCountedRanks, kCountedChunks, 256);
  model.shape.n_spare_slots = mode.early != 0 ? kCountedSpareSlots : 0;
  model.groups.assign(model.places.size(), 0);
  // Parameters that miss steps count their updates apart: later steps have more constants of Adam.
  model.unused = [](uint32_t place, uint32_t step) { return place % 3 < step % 3; };
  return {.model = std::move(model),
          .accumulate = mode.accumulate,
          .immediate = mode.immediate,
          .norms = mode.norms,
          .early = mode.early};
}

// A job whose events are counted.
struct CountedJob : SavingJob {
  explicit CountedJob(const CountedMode& mode) : SavingJob(options_of(mode)), mode(mode) {}

  // What the event loop and the workers do for an event.
  template <typename Event>
  void count(const Event& event) {
    const uint64_t allocated_before = allocations(), locked_before = locks_taken;
    event();
    run_workers();
    allocated += allocations() - allocated_before;
    locked += locks_taken - locked_before;
    ++events;
  }

  // All ranks' step, by doorbells and then a tick.
  void make_step(uint32_t step) {
    for (uint32_t rank = 0; rank < kCountedRanks; ++rank) {
      if (mode.immediate + mode.early > 0) open(rank, step);
    }
    for (uint32_t micro_step = 1; micro_step <= mode.accumulate; ++micro_step) {
      for (uint32_t rank = 0; rank < kCountedRanks; ++rank) {
        for (uint32_t chunk = 0; chunk < kCountedChunks; ++chunk) {
          write_chunk(rank, chunk, step, micro_step);
          if (micro_step < mode.accumulate) trainers.rank(rank).write_request(chunk);
          count([&] { must_be_ok(job.look_at_grads(this->rank(rank), chunk)); });
        }
      }
    }
    for (uint32_t rank = 0; rank < kCountedRanks; ++rank) {
      post_silently(rank, step);
      count([&] { job.heard_post(this->rank(rank), step); });
    }
    count([&] {
      job.check_memory();
      job.look_at_everything();
      job.tell_folder_progress();
    });
    reference.step(make_record(step, kCountedRanks), mode.accumulate);
  }

  // A writer takes and writes chunk after chunk, and the event loop hears of each.
  void write_all() {
    Snapshot& snapshot = *ports.saving->snapshot;
    while (const std::optional<Snapshot::Item> item = snapshot.next()) {
      count([&] {
        snapshot.written(item->chunk);
        job.saving_moved();
      });
    }
    EXPECT_TRUE(snapshot.all_written());
  }

  static void must_be_ok(const Status& status) {
    if (!status.ok()) ADD_FAILURE() << status.message();
  }

  const CountedMode mode;
  uint64_t events = 0, allocated = 0, locked = 0;
};

class Costs : public ::testing::TestWithParam<CountedMode> {};
INSTANTIATE_TEST_SUITE_P(Modes, Costs, ::testing::ValuesIn(kCountedModes),
                         [](const auto& each) { return each.param.name; });

// Whatever room there is for copies: none, a few chunks', all.
TEST_P(Costs, StepsTakeNoMemoryAndFewLocksAnEventThoughASaveRunsBesideThem) {
  CountedJob world(GetParam());
  const uint64_t chunk_bytes = kCountedRanks * world.model.shape.image_bytes();
  uint32_t step = 0;
  world.make_step(++step);
  for (const uint64_t shadow_bytes : {uint64_t{0}, 7 * chunk_bytes, kPlenty}) {
    SCOPED_TRACE(shadow_bytes);
    world.make_step(++step);
    world.ask_all(step, {.name = checkpoints::step_name(step), .shadow_bytes = shadow_bytes});
    ASSERT_NE(world.ports.saving, nullptr);
    world.make_step(++step);
    world.write_all();
    EXPECT_EQ(world.finished_step(), step);
    world.make_step(++step);
    world.end_save();
    EXPECT_EQ(world.finished_step(), step);
    EXPECT_TRUE(world.equals(world.reference)) << "step " << step;
  }
  world.make_step(++step);
  const JobStatistics& last = world.job.statistics();
  EXPECT_EQ(last.early_chunks_last, world.model.shape.n_spare_slots) << "a slot is lost";
  EXPECT_EQ(world.allocated, 0u);
  EXPECT_LE(world.locked, 2 * world.events) << "an event walks over what is held";
}

// The control.
TEST(CostsAreCounted, WhereMemoryAndLocksAreTaken) {
  CountedJob world(kCountedModes[0]);
  Mutex mutex;
  std::vector<int> grows;
  world.count([&] {
    const MutexLock lock(mutex);
    grows.push_back(1);
  });
  EXPECT_EQ(world.allocated, 1u);
  EXPECT_EQ(world.locked, 1u);
}

}  // namespace
}  // namespace elixir::daemon
