// Every mode of updates through a real elixird, whose workers, doorbells and events come at the
// same time; what it says of its jobs; and which modes it refuses. Every case of every mode:
// job_modes_test.cpp.

#include <nlohmann/json.hpp>

#include "tests/daemon/daemon_process.h"
#include "tests/daemon/modes.h"
#include "tests/support/matchers.h"
#include "tests/support/sanitized.h"

namespace elixir::testing::elixird_modes {
namespace {

constexpr Verdicts kClipped{.norms = true, .clip_norm = 0.01};

// One elixird for all tests: jobs must leave nothing that the next one could stumble over.
class ElixirdModes : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    daemon_ = std::make_unique<DaemonProcess>(
        std::vector<std::string>{"--workers", "2", "--test-slice-numel", "256"});
  }
  static void TearDownTestSuite() { daemon_.reset(); }
  void SetUp() override { lost_before_ = lost_doorbells(); }
  void TearDown() override {
    EXPECT_TRUE(daemon_->running()) << daemon_->log();
    // Where no test loses doorbells, no tick finds what none has rung for.
    EXPECT_EQ(lost_doorbells() - lost_before_, loses_doorbells_);
  }

  static std::unique_ptr<FakeJob> start(FakeJob::Options options) {
    options.folder = daemon_->folder();
    return must(FakeJob::start(options));
  }
  // All ranks go, in good order, once elixird has heard every doorbell of theirs: goodbyes take
  // another way, and may overtake them.
  static void leave(FakeJob& job) {
    for (const auto& rank : job.ranks()) EXPECT_TRUE(rank->await_ready().ok());
    job.detach();
  }
  static uint64_t lost_doorbells() {
    return nlohmann::json::parse(daemon_->ask_status())["daemon"]["lost_doorbells"];
  }
  // What status says of the job, once it knows of the step: the event loop learns of it a little
  // later than the trainer.
  static nlohmann::json status_of(const std::string& name, uint32_t step) {
    nlohmann::json mine;
    EXPECT_TRUE(becomes_true([&] {
      const auto all = nlohmann::json::parse(daemon_->ask_status());
      for (const auto& entry : all["jobs"]) {
        if (entry["job"] == name) mine = entry;
      }
      return mine["steps_done"] == step;
    })) << mine;
    return mine;
  }

  static inline std::unique_ptr<DaemonProcess> daemon_;
  uint64_t lost_before_ = 0, loses_doorbells_ = 0;
};

// Each mode with a few verdicts, types, numbers of ranks and layouts.
TEST_F(ElixirdModes, HaveTheBitsOfTheReference) {
  for (const Training& training : trainings(kSanitized ? 139 : 53)) {
    SCOPED_TRACE(training.name());
    auto job = start(training.options());
    ASSERT_NE(job, nullptr);
    ASSERT_NO_FATAL_FAILURE(expect_reference_bits(*job, training));
    ASSERT_FALSE(HasFailure());
    leave(*job);
  }
}

// As many as a node may have; what counts ranks does so in bits of a word.
TEST_F(ElixirdModes, SixtyFourRanksHaveTheBitsOfTheReferenceAndHearOfADeath) {
  for (const bool collective : {false, true}) {
    const Training training{
        .mode = {.accumulate = 2, .collective = collective, .verdicts = kClipped},
        .ranks = shm::kMaxLocalRanks};
    FakeJob::Options options = training.options();
    // So tiny that most ranks keep nothing of it; or as long as it takes for all to have a shard.
    options.model = make_model(ComputeType::kBf16, training.ranks, 3,
                               shm::kAlignNumel * (collective ? training.ranks : 10));
    options.model.shape.exchange = training.model().shape.exchange;
    options.first_rank = options.local_ranks = 0;
    auto job = start(options);
    ASSERT_NE(job, nullptr);
    ASSERT_NO_FATAL_FAILURE(expect_reference_bits(*job, training));
    job->rank(shm::kMaxLocalRanks - 1).die();
    for (uint32_t rank = 0; rank + 1 < shm::kMaxLocalRanks; ++rank) {
      const auto fault = job->rank(rank).wait_session_fault();
      ASSERT_TRUE(fault.ok()) << rank << ": " << fault.status().message();
      EXPECT_EQ(fault->code, static_cast<uint32_t>(Code::kPeerLost));
      EXPECT_EQ(fault->rank, shm::kMaxLocalRanks - 1);
    }
  }
}

TEST_F(ElixirdModes, LostDoorbellsAreNoticedAndCounted) {
  loses_doorbells_ = 3;
  auto job = start({.model = make_model(ComputeType::kFp32, 1, 2, 4736), .immediate = 1});
  job->open(make_record(1, 1));
  job->write_grads(0, 1);
  for (uint32_t chunk = 0; chunk < 2; ++chunk) ASSERT_TRUE(job->rank(0).wait_param(chunk, 1).ok());
  EXPECT_TRUE(becomes_true([&] { return lost_doorbells() - lost_before_ == 2; })) << "of chunks";
  job->rank(0).post_silently(make_record(1, 1));
  EXPECT_TRUE(job->wait_finished(1).ok());
  EXPECT_TRUE(becomes_true([&] { return lost_doorbells() - lost_before_ == 3; }));
  leave(*job);
}

TEST_F(ElixirdModes, JobsOfSeveralModesAtOnceKeepApart) {
  const Training kinds[] = {{{.name = "deferred"}, ComputeType::kFp16, 3},
                            {{.name = "immediate", .immediate = true}, ComputeType::kFp32, 1},
                            {{.name = "clipped", .verdicts = kClipped}, ComputeType::kBf16, 2}};
  std::vector<std::unique_ptr<FakeJob>> jobs;
  std::vector<Reference> references;
  for (const Training& kind : kinds) {
    FakeJob::Options options = kind.options();
    options.name = kind.mode.name;
    jobs.push_back(start(options));
    ASSERT_NE(jobs.back(), nullptr);
    references.emplace_back(options.model);
  }
  for (uint32_t step = 1; step <= 6; ++step) {
    for (size_t i = 0; i < jobs.size(); ++i) {  // all in flight together
      jobs[i]->open(kinds[i].record(step));
      jobs[i]->publish(step);
      references[i].step(kinds[i].record(step));
    }
    for (size_t i = 0; i < jobs.size(); ++i) jobs[i]->post(kinds[i].record(step));
    for (size_t i = 0; i < jobs.size(); ++i) {
      ASSERT_TRUE(jobs[i]->wait_finished(step).ok());
      const Status same = jobs[i]->compare(references[i]);
      EXPECT_TRUE(same.ok()) << kinds[i].mode.name << ", step " << step << ": " << same.message();
    }
  }
  for (auto& job : jobs) leave(*job);
}

TEST_F(ElixirdModes, StatusSaysWhatTheJobIsAndWhatBecameOfItsLastStep) {
  FakeModel model = make_model(ComputeType::kBf16, 2, 4, 4736);
  model.poison_step = 2;
  auto job = start({.name = "seen", .model = model, .norms = 1});
  for (uint32_t step = 1; step <= 3; ++step) {
    job->publish(step);
    for (uint32_t rank = 0; rank < 2; ++rank) {
      shm::StepRecord record = make_record(step, 2);
      record.clip_norm = 1;
      record.metric += rank;
      record.step_ns = (10 + rank) * 1'000'000;
      record.exposed_ns = 2'000'000;
      record.h2d_ns = 3'000'000;
      record.d2h_ns = 4'000'000;
      record.d2d_bytes = 77;
      job->rank(rank).post(record);
    }
    ASSERT_TRUE(job->wait_finished(step).ok());
  }
  const nlohmann::json mine = status_of("seen", 3);
  EXPECT_EQ(mine["state"], "training");
  EXPECT_EQ(mine["ranks"], 2);
  EXPECT_EQ(mine["chunks"], 4);
  EXPECT_EQ(mine["chunk_numel"], 4736);
  EXPECT_EQ(mine["gathers_last_step"], 7);
  EXPECT_EQ(mine["params"], shm::total_numel(model.places));
  EXPECT_EQ(mine["host_bytes"], 2 * model.shape.session_bytes());
  EXPECT_EQ(mine["pids"].size(), 2u);
  EXPECT_EQ(mine["skipped"], 1);
  EXPECT_EQ(mine["applied"], 2);
  EXPECT_EQ(mine["d2d_bytes"], 77);
  EXPECT_GT(mine["update_mparam_s"].get<double>(), 0);
  const double numel = static_cast<double>(shm::total_numel(model.places));
  EXPECT_NEAR(mine["waste_ratio"].get<double>(), 4.0 * 4736 / numel - 1, 1e-9);
  const shm::StepResult result = job->rank(0).step_result(3);
  const std::pair<const char*, double> last[] = {
      {"loss_last_step", 5.0 - 0.1 * 3 + 0.5},  // the mean of both
      {"grad_norm", result.grad_norm},
      {"grad_scale", result.grad_scale},
      {"update_ms", static_cast<double>(job->rank(0).update_result(3).update_ns) * 1e-6},
      {"step_ms", 10.5},
      {"exposed_ms", 2},
      {"h2d_ms", 3},
      {"d2h_ms", 4}};
  for (const auto& [name, value] : last) EXPECT_DOUBLE_EQ(mine[name].get<double>(), value) << name;
  const auto json = nlohmann::json::parse(daemon_->ask_status());
  EXPECT_EQ(json["daemon"]["pid"], daemon_->pid());
  EXPECT_EQ(json["daemon"]["threads_by_node"].begin().value(), 2);
  EXPECT_NE(daemon_->ask_status("stat").find("error"), std::string::npos);
  leave(*job);
}

TEST_F(ElixirdModes, ThatCannotBeAreRefused) {
  const struct {
    const char* heard;
    uint32_t swing_chunks, lanes, spare_slots, immediate;
  } cases[] = {{"immediate updates with swing chunks", 2, 2, 0, 1},
               {"4 swing chunks in 2 lanes", 4, 2, 0, 0},
               {"2 swing chunks in 0 lanes", 2, 0, 0, 0},
               {"in 9 lanes", 2, 9, 0, 0},
               {"2 spare slots for 1 chunks", 2, 2, 2, 0}};
  for (const auto& one : cases) {
    FakeModel model = make_model(ComputeType::kFp32, 1, 3, 4736);
    model.shape.n_swing_chunks = one.swing_chunks;
    model.shape.n_swing_lanes = one.lanes;
    model.shape.n_spare_slots = one.spare_slots;
    const auto job =
        FakeJob::attach({.folder = daemon_->folder(), .model = model, .immediate = one.immediate});
    EXPECT_NE(job.status().message().find(one.heard), std::string::npos) << job.status().message();
  }
}

// Ranks that differ in what they declare are not of one job.
TEST_F(ElixirdModes, AllRanksOfAJobDeclareTheSame) {
  const FakeJob whole({.folder = daemon_->folder(), .accumulate = 2});
  const auto first = must(FakeTrainer::attach(whole.options_of(0)));
  FakeTrainer::Options other = whole.options_of(1);
  other.accumulate = 3;
  expect_refused(FakeTrainer::attach(other).status(), Code::kInvalidArgument, {"accumulation"});
}

}  // namespace
}  // namespace elixir::testing::elixird_modes
