// The model of a job is what daemon::Job does: on random ways through its states a Job with the
// same options goes along, and both say the same after every event.

#include "tests/daemon/job_model.h"

#include <gtest/gtest.h>

#include <random>

#include "base/log.h"
#include "tests/daemon/job_fixture.h"

namespace elixir::testing {
namespace {

class Companion {
 public:
  explicit Companion(const ModelOptions& options)
      : options_(options),
        model_(options),
        state_(model_.start()),
        world_({.model = make_model(ComputeType::kFp32, options.ranks, options.chunks, 256),
                .accumulate = options.rules.accumulate,
                .immediate = options.rules.immediate != 0,
                .norms = options.rules.norms != 0}) {
    world_.start();
  }

  // Until the job is over, or nothing has changed for long.
  void walk(uint64_t seed) {
    std::mt19937_64 random(seed);
    for (int i = 0; i < 400 && !state_.over && !::testing::Test::HasFailure(); ++i) {
      const std::vector<ModelEvent> events = model_.events(state_);
      ModelEvent event = events[random() % events.size()];
      const bool ends = event.kind == Kind::kDies || event.kind == Kind::kLeaves;
      if (ends && random() % 64 != 0) continue;
      SCOPED_TRACE(fmt::format("accumulate {} immediate {} norms {}, seed {}, event {}: {}",
                               options_.rules.accumulate, options_.rules.immediate,
                               options_.rules.norms, seed, i, event.text()));
      happen(event);
      compare();
    }
  }
  bool over() const { return state_.over; }
  uint32_t finished() const { return state_.finished; }

 private:
  using Kind = ModelEvent::Kind;

  void happen(const ModelEvent& event) {
    const ModelState before = state_;
    state_ = model_.after(state_, event);
    daemon::Session& session = world_.rank(event.rank);
    switch (event.kind) {
      case Kind::kStore:
        if (state_.ranks[event.rank].gone != before.ranks[event.rank].gone) {
          return world_.job.detach(session);
        }
        return store(event.rank, before.ranks[event.rank]);
      case Kind::kRingsGrads:
        EXPECT_TRUE(world_.job.look_at_grads(session, event.chunk).ok());
        return;
      case Kind::kRingsPost:
        return world_.job.look_at_posted(session);
      case Kind::kTick:
        return world_.job.look_at_everything();
      case Kind::kWorker:
        return work();
      case Kind::kWorkDone:
        world_.ports.submitted = nullptr;
        return world_.job.work_done();
      case Kind::kSumsFilled:
        return world_.fill_sums();
      case Kind::kDies:
        return world_.job.lose_rank(session);
      case Kind::kLeaves:
        return world_.job.detach(session);
    }
  }

  // What the model's rank has written since, in the order in which a trainer writes it.
  void store(uint32_t rank, const ModelState::Rank& before) {
    const ModelState::Rank& now = state_.ranks[rank];
    const daemon::SessionMemory& memory = *world_.rank(rank).memory;
    for (uint32_t chunk = 0; chunk < options_.chunks; ++chunk) {
      const ModelState::Record& record = now.records[chunk];
      if (record == before.records[chunk]) continue;
      if (options_.rules.immediate != 0) world_.open(rank, record.step);
      for (uint32_t i = 0; i < world_.model.shape.n_parameters; ++i) {
        if (world_.model.places[i].chunk == chunk) memory.grad_groups(record.step)[i].store(1);
      }
      shm::GradRecord& words = memory.grad_record(chunk);
      words.grad_step.store(record.step);
      words.grad_micro_step.store(record.micro_step);
      words.grad_publication.store({.revision = record.revision,
                                    .discards = record.discards,
                                    .to_sum = record.to_sum == record.revision ? 1u : 0u});
    }
    world_.header(rank).publications.store(now.publications);
    world_.header(rank).awaited_sum.store(now.awaited);
    if (now.posted == before.posted) return;
    shm::StepRecord record = make_record(now.posted, options_.ranks);
    record.check_finite = options_.rules.norms;
    record.norm.nonfinite = now.posted == options_.skipped_step ? 1 : 0;
    world_.write_record(rank, record);
    world_.header(rank).posted_step.store(now.posted);
  }

  // All tasks: in which order a job's workers take them is not the model's.
  void work() {
    for (uint8_t chunk = 0; chunk < options_.chunks; ++chunk) {
      if (state_.tasks[chunk].in_flight) {
        state_ = model_.after(state_, {Kind::kWorker, 0, chunk});
      }
    }
    ASSERT_NE(world_.ports.submitted, nullptr);
    while (world_.ports.submitted->run_slice(0, 0)) {
    }
  }

  void compare() {
    const daemon::JobMachine& want = model_.machine(state_);
    const daemon::JobMachine& have = world_.job.machine();
    EXPECT_EQ(have.phase(), want.phase());
    EXPECT_EQ(have.activity(), want.activity());
    EXPECT_EQ(have.committed_step(), want.committed_step());
    EXPECT_EQ(have.finished_step(), want.finished_step());
    EXPECT_EQ(have.fault().has_value(), want.fault().has_value())
        << (have.fault() ? have.fault()->text : "");
    EXPECT_EQ(world_.ports.overs, state_.over ? 1 : 0);
    for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
      EXPECT_EQ(have.posted_step(rank), want.posted_step(rank));
      const shm::ControlHeader& header = world_.header(rank);
      EXPECT_EQ(header.committed_step.load(), state_.committed);
      EXPECT_EQ(header.finished_step.load(), state_.finished);
      EXPECT_EQ(header.skipped_through.load(), state_.skipped_through);
      for (uint32_t chunk = 0; chunk < options_.chunks; ++chunk) {
        const shm::ChunkRecord& record = world_.rank(rank).memory->chunk_record(chunk);
        EXPECT_EQ(record.param_step.load(), state_.param_step[chunk]) << "chunk " << chunk;
        EXPECT_EQ(record.grad_taken.load(), state_.ranks[rank].grad_taken[chunk])
            << "chunk " << chunk;
      }
    }
  }

  const ModelOptions options_;
  JobModel model_;
  ModelState state_;
  InProcessJob world_;
};

TEST(JobModel, DoesWhatAJobDoes) {
  init_log("test", LogLevel::kError);
  const ModelOptions kinds[] = {
      {.rounds = {1, 1}},
      {.rules = {.accumulate = 2}},
      {},
      {.rules = {.accumulate = 2, .immediate = 1}},
      {.rules = {.accumulate = 2, .norms = 1}, .skipped_step = 1},
      {.rounds = {2, 1}, .rules = {.accumulate = 2}},
      {.dropped = {1, 1}},
      {.dropped = {2, 1}, .rules = {.norms = 1}},
      {.dropped = {2, 2}, .rules = {.accumulate = 3}},
      {.dropped = {1, 1}, .rules = {.accumulate = 2, .immediate = 1}},
      {.passes = kApart},
      {.passes = kCrossed, .rules = {.accumulate = 2, .norms = 1}},
      {.rounds = {3, 3}, .passes = {{{7, 2}, {6, 3}}}, .rules = {.accumulate = 3, .immediate = 1}},
  };
  constexpr uint64_t kWalks = 40;
  uint64_t over = 0, finished = 0;
  for (ModelOptions options : kinds) {
    options.dies = options.leaves = true;
    for (uint64_t seed = 1; seed <= kWalks && !HasFailure(); ++seed) {
      Companion companion(options);
      companion.walk(seed);
      over += companion.over() ? 1 : 0;
      finished += companion.finished();
    }
  }
  // Ways that lead nowhere would say nothing.
  EXPECT_GT(over, std::size(kinds) * kWalks / 4);
  EXPECT_GT(finished, std::size(kinds) * kWalks / 4);
  std::printf("of %zu ways %llu end, %llu steps\n", std::size(kinds) * kWalks,
              static_cast<unsigned long long>(over), static_cast<unsigned long long>(finished));
}

}  // namespace
}  // namespace elixir::testing
