// Swing chunks through a real elixird: a trainer updates them after the verdict, in memory that
// both map, and the job has the bits of the scalar reference; and what elixird does with a trainer
// that says what is not so, or nothing. Deaths: elixird_commit_test.cpp.

#include <gtest/gtest.h>

#include "tests/daemon/gradients_fixture.h"
#include "tests/support/sanitized.h"

namespace elixir::testing::swing {
namespace {

constexpr uint64_t kChunkNumel = 128 * 37;
constexpr ComputeType kTypes[] = {ComputeType::kFp32, ComputeType::kBf16, ComputeType::kFp16};

FakeModel model_of(ComputeType type, uint32_t ranks, uint32_t n_chunks, uint32_t n_swing,
                   uint32_t lanes) {
  FakeModel model = make_model(type, ranks, n_chunks, kChunkNumel);
  model.shape.n_swing_chunks = n_swing;
  model.shape.n_swing_lanes = lanes;
  return model;
}

// What elixird updates: its rate is of these.
uint64_t workers_numel(const FakeModel& model) {
  uint64_t numel = 0;
  for (const shm::ParameterPlace& place : model.places) {
    if (place.chunk < model.shape.first_swing()) numel += place.numel;
  }
  return numel;
}

class Swing : public Gradients {
 protected:
  // One step of all ranks, its update included.
  static void step(FakeJob& job, const shm::StepRecord& record, uint32_t rounds) {
    for (uint32_t round = 1; round <= rounds; ++round) {
      if (round > 1) {
        ASSERT_TRUE(job.wait_taken().ok());
      }
      job.publish(record.step, round);
    }
    job.post(record);
    const Status swung = job.swing(record.step);
    ASSERT_TRUE(swung.ok()) << swung.message();
    const Status finished = job.wait_finished(record.step);
    ASSERT_TRUE(finished.ok()) << finished.message();
  }
};

// Whatever the number of swing chunks and lanes: all of a lane's chunks, one more, fewer. Of 120
// cases.
TEST_F(Swing, UpdatesHaveTheBitsOfNoneWhateverTheVerdict) {
  struct Kind {
    const char* name;
    double clip;
    uint32_t poison, rounds;
  };
  const Kind kinds[] = {
      {"plain", 0, 0, 1}, {"clip", 1e-3, 0, 1}, {"skip", 1e6, 3, 1}, {"two", 0, 0, 2}};
  uint32_t cases = 0;
  for (const ComputeType type : kTypes) {
    for (const uint32_t ranks : {1u, 2u}) {
      for (const Kind& kind : kinds) {
        for (const auto& [swing, lanes] :
             {std::pair{1u, 2u}, {3u, 2u}, {4u, 3u}, {5u, 1u}, {5u, 2u}}) {
          if (kSanitized && cases++ % 3 != 0) continue;
          FakeModel model = model_of(type, ranks, 5, swing, lanes);
          model.poison_step = kind.poison;
          const std::string name =
              fmt::format("{} {} ranks, {} swing chunks, {} lanes", kind.name, ranks, swing, lanes);
          auto job =
              start({.model = model, .accumulate = kind.rounds, .norms = kind.clip > 0 ? 1u : 0u});
          ASSERT_NE(job, nullptr) << name;
          Reference reference(model);
          for (uint32_t number = 1; number <= 5; ++number) {
            shm::StepRecord record = make_record(number, ranks);
            record.clip_norm = kind.clip;
            ASSERT_NO_FATAL_FAILURE(step(*job, record, kind.rounds)) << name;
            const optim::Verdict verdict = reference.step(record, kind.rounds);
            expect_verdict(*job, number, verdict, reference.applied());
            const Status same = job->compare(reference);
            ASSERT_TRUE(same.ok()) << name << ", step " << number << ": " << same.message();
            const shm::UpdateResult result = job->rank(0).update_result(number);
            EXPECT_EQ(result.swing_chunks, verdict.skipped ? 0 : swing);
            EXPECT_EQ(result.updated_numel, verdict.skipped ? 0 : workers_numel(model));
          }
          leave(*job);
        }
      }
    }
  }
}

// Sums that a step asks for late, groups, and parameters without a gradient on any rank.
TEST_F(Swing, SaysWhichParametersAreUpdatedAndHowOftenTheyWere) {
  FakeModel model = model_of(ComputeType::kBf16, 2, 4, 3, 2);
  model.unused = [](uint32_t place, uint32_t step) { return (place + step) % 3 == 0; };
  for (uint32_t i = 0; i < model.places.size(); ++i) model.groups.push_back(i % 2);
  auto job = start({.model = model});
  Reference reference(model);
  for (uint32_t number = 1; number <= 7; ++number) {
    shm::StepRecord record = make_record(number, 2);
    record.n_groups = 2;
    record.groups[1] = record.groups[0];
    record.groups[1].lr *= 3;
    ASSERT_NO_FATAL_FAILURE(step(*job, record, 1));
    reference.step(record);
    const Status same = job->compare(reference);
    ASSERT_TRUE(same.ok()) << "step " << number << ": " << same.message();
  }
  leave(*job);
}

// With early updates of the other chunks.
TEST_F(Swing, GoesBesideEarlyUpdates) {
  FakeModel model = model_of(ComputeType::kBf16, 2, 6, 3, 2);
  model.shape.n_spare_slots = 3;
  auto job = start({.model = model, .norms = 1, .early = 1});
  Reference reference(model);
  for (uint32_t number = 1; number <= 6; ++number) {
    shm::StepRecord record = make_record(number, 2);
    record.clip_norm = number % 3 == 0 ? 1e-3 : 1e6;
    for (auto& rank : job->ranks()) rank->open(record);
    ASSERT_NO_FATAL_FAILURE(step(*job, record, 1));
    reference.step(record);
    const Status same = job->compare(reference);
    ASSERT_TRUE(same.ok()) << "step " << number << ": " << same.message();
  }
  leave(*job);
}

// Before its own lane is free a rank goes no further than the others let the chunk be published.
TEST_F(Swing, ARankMayBeAheadOfAnotherInEveryLane) {
  const FakeModel model = model_of(ComputeType::kBf16, 2, 6, 6, 2);
  auto job = start({.model = model});
  Reference reference(model);
  for (uint32_t number = 1; number <= 4; ++number) {
    job->publish(number);
    const shm::StepRecord record = make_record(number, 2);
    job->post(record);
    const uint32_t first = number % 2;
    ASSERT_TRUE(job->rank(first).swing(number).ok());
    ASSERT_TRUE(job->rank(first).await_ready().ok());  // elixird has heard all of its doorbells
    for (uint32_t chunk = 0; chunk < 6; ++chunk) {
      EXPECT_EQ(job->rank(0).param_step(chunk), number - 1) << chunk;
    }
    ASSERT_TRUE(job->rank(1 - first).swing(number).ok());
    ASSERT_TRUE(job->wait_finished(number).ok());
    reference.step(record);
    const Status same = job->compare(reference);
    ASSERT_TRUE(same.ok()) << "step " << number << ": " << same.message();
  }
  leave(*job);
}

// A doorbell less: a tick looks.
TEST_F(Swing, ALostDoorbellCostsATickAndNothingElse) {
  loses_doorbells_ = true;
  const FakeModel model = model_of(ComputeType::kFp32, 1, 2, 2, 2);
  auto job = start({.model = model});
  job->publish(1);
  job->post(make_record(1, 1));
  FakeTrainer& rank = job->rank(0);
  ASSERT_TRUE(rank.wait_swing(0, 1).ok());
  for (uint32_t chunk = 0; chunk < 2; ++chunk) {
    rank.swing_record(chunk).slot.store(model.shape.first_swing_spare(chunk));
    rank.swing_record(chunk).step.store(1, std::memory_order_release);
  }
  EXPECT_TRUE(job->wait_finished(1).ok());
  leave(*job);
}

// Every word that it may write wrongly.
TEST_F(Swing, WhoSaysWhatIsNotSoEndsItsJob) {
  struct Lie {
    const char* what;
    uint32_t slot_less, step;
    const char* heard;
  };
  const FakeModel model = model_of(ComputeType::kFp32, 1, 3, 2, 2);
  const uint32_t right = model.shape.first_swing_spare(0);
  const Lie lies[] = {{"another lane's slot", right + 1, 1, "in slot"},
                      {"its own slot", model.shape.first_slot(1), 1, "in slot"},
                      {"a slot that there is not", 1000000, 1, "in slot"},
                      {"a step that is to come", right, 2, "is of step 2"},
                      {"a step far off", right, 0xffffffff, "is of step"}};
  for (const Lie& lie : lies) {
    SCOPED_TRACE(lie.what);
    auto job = start({.name = fmt::format("lie-{}-{}", lie.slot_less, lie.step), .model = model});
    job->publish(1);
    job->post(make_record(1, 1));
    FakeTrainer& rank = job->rank(0);
    ASSERT_TRUE(rank.wait_swing(1, 1).ok());
    rank.swing_record(1).slot.store(lie.slot_less);
    rank.swing_record(1).step.store(lie.step, std::memory_order_release);
    rank.ring_swing(1);
    expect_fault(*job, 0, lie.heard);
    EXPECT_EQ(rank.header().finished_step.load(), 0u);
  }
}

TEST_F(Swing, ImpossibleShapesAndRulesAreRefused) {
  const auto refused = [this](auto change, uint32_t immediate, const std::string& needle) {
    FakeJob::Options options{.folder = daemon_->folder(),
                             .model = model_of(ComputeType::kFp32, 1, 3, 2, 2),
                             .immediate = immediate};
    change(options.model.shape);
    const auto job = FakeJob::attach(options);
    ASSERT_FALSE(job.ok());
    EXPECT_NE(job.status().message().find(needle), std::string::npos) << job.status().message();
  };
  refused([](shm::Shape&) {}, 1, "immediate updates with swing chunks");
  refused([](shm::Shape& shape) { shape.n_swing_chunks = 4; }, 0, "4 swing chunks in 2 lanes");
  refused([](shm::Shape& shape) { shape.n_swing_lanes = 0; }, 0, "2 swing chunks in 0 lanes");
  refused([](shm::Shape& shape) { shape.n_swing_lanes = 9; }, 0, "in 9 lanes");
  refused([](shm::Shape& shape) { shape.n_spare_slots = 2; }, 0, "2 spare slots for 1 chunks");
}

}  // namespace
}  // namespace elixir::testing::swing
