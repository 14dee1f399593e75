// Clipping, skipped steps and what status says of them: through a real elixird, against the scalar
// reference.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/compute_type_names.h"
#include "tests/daemon/gradients_fixture.h"

namespace elixir::testing::clipped_steps {
namespace {

constexpr uint64_t kChunkNumel = 128 * 37;
constexpr uint32_t kChunks = 4;

struct Case {
  ComputeType type;
  uint32_t ranks, accumulate;
  bool early;  // norms announced
};

class Clipping : public Gradients, public ::testing::WithParamInterface<Case> {};

// Most steps have as many rounds as were declared, one fewer, one more.
uint32_t rounds_of(uint32_t step, uint32_t accumulate) {
  if (accumulate == 1) return 1;
  return step == 4 ? 1 : step == 7 ? accumulate + 1 : accumulate;
}

// Norms do not depend on weights.
double median_norm(const FakeModel& model, uint32_t accumulate, uint32_t steps) {
  Reference reference(model);
  std::vector<double> norms;
  for (uint32_t step = 1; step <= steps; ++step) {
    const shm::StepRecord record = clipping(step, model.shape.ranks, 1e9);
    norms.push_back(reference.step(record, rounds_of(step, accumulate)).grad_norm);
  }
  std::sort(norms.begin(), norms.end());
  return norms[steps / 2];
}

std::string why_it_ended(FakeJob& job) {
  const Result<shm::SessionFault> fault = job.rank(0).wait_session_fault();
  return fault.ok() ? fault->text : fault.status().message();
}

// A norm that clips about half of the steps, and one step without a norm between.
TEST_P(Clipping, EqualsTheReference) {
  const auto [type, ranks, accumulate, early] = GetParam();
  const FakeModel model = make_model(type, ranks, kChunks, kChunkNumel);
  auto job = start({.model = model, .accumulate = accumulate, .norms = early});
  Reference reference(model);
  const double median = median_norm(model, accumulate, 10);
  uint32_t clipped = 0;
  for (uint32_t step = 1; step <= 10; ++step) {
    const shm::StepRecord record = clipping(step, ranks, step == 9 ? 0 : median);
    const uint32_t rounds = rounds_of(step, accumulate);
    for (uint32_t round = 1; round <= rounds; ++round) {
      if (round > 1) {
        ASSERT_TRUE(job->wait_taken().ok());
      }
      job->publish(step, round);
    }
    job->post(record);
    const Status finished = job->wait_finished(step);
    ASSERT_TRUE(finished.ok()) << finished.message() << ": " << why_it_ended(*job);
    const optim::Verdict verdict = reference.step(record, rounds);
    expect_verdict(*job, step, verdict, step);
    clipped += verdict.grad_scale != record.grad_scale;
    const Status same = job->compare(reference);
    ASSERT_TRUE(same.ok()) << "step " << step << ": " << same.message();
  }
  EXPECT_GE(clipped, 3u);
  EXPECT_LE(clipped, 6u);
  leave(*job);
}

INSTANTIATE_TEST_SUITE_P(
    All, Clipping,
    ::testing::Values(Case{ComputeType::kFp32, 1, 1, true}, Case{ComputeType::kFp32, 2, 1, true},
                      Case{ComputeType::kBf16, 1, 1, true}, Case{ComputeType::kBf16, 2, 1, true},
                      Case{ComputeType::kFp16, 2, 1, true}, Case{ComputeType::kBf16, 2, 1, false},
                      Case{ComputeType::kFp32, 1, 2, true}, Case{ComputeType::kFp32, 2, 2, true},
                      Case{ComputeType::kBf16, 1, 4, true}, Case{ComputeType::kBf16, 2, 4, true},
                      Case{ComputeType::kFp16, 1, 4, false}, Case{ComputeType::kBf16, 2, 2, false}),
    [](const auto& info) {
      return fmt::format("{}_{}_ranks_{}_rounds_{}", compute_type_name(info.param.type),
                         info.param.ranks, info.param.accumulate,
                         info.param.early ? "early" : "at_the_post");
    });

// Negative control for all of the above: a scale that is one unit off has other bits.
TEST_F(Gradients, AnotherScaleIsSeen) {
  const FakeModel model = make_model(ComputeType::kFp32, 1, kChunks, kChunkNumel);
  auto job = start({.model = model});
  Reference reference(model);
  shm::StepRecord record = make_record(1, 1);
  reference.step(record);
  record.grad_scale = std::nextafter(1.0f, 2.0f);
  job->publish(1);
  job->post(record);
  ASSERT_TRUE(job->wait_finished(1).ok());
  EXPECT_FALSE(job->compare(reference).ok());
  leave(*job);
}

TEST_F(Gradients, AStepWithAnInfiniteGradientIsSkippedAndDoesNotCount) {
  for (const bool early : {false, true}) {
    for (const uint32_t accumulate : {1u, 2u}) {
      FakeModel model = make_model(ComputeType::kFp16, 2, kChunks, kChunkNumel);
      model.poison_step = 3;
      auto job = start({.model = model, .accumulate = accumulate, .norms = early});
      Reference reference(model);
      for (uint32_t step = 1; step <= 5; ++step) {
        shm::StepRecord record = make_record(step, 2);
        record.check_finite = 1;
        for (uint32_t round = 1; round <= accumulate; ++round) {
          if (round > 1) {
            ASSERT_TRUE(job->wait_taken().ok());
          }
          job->publish(step, round);
        }
        job->post(record);
        ASSERT_TRUE(job->wait_finished(step).ok());
        const optim::Verdict verdict = reference.step(record, accumulate);
        EXPECT_EQ(verdict.skipped, step == 3);
        expect_verdict(*job, step, verdict, step < 3 ? step : step - 1);
        for (auto& rank : job->ranks()) {
          for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
            EXPECT_EQ(rank->param_step(chunk), step);
          }
          EXPECT_EQ(rank->update_result(step).updated_numel == 0, step == 3);
        }
        const Status same = job->compare(reference);
        ASSERT_TRUE(same.ok()) << "step " << step << ": " << same.message();
      }
      leave(*job);
    }
  }
}

// Without a check the same gradient is applied: what the skipped step was kept from.
TEST_F(Gradients, WithoutACheckAnInfiniteGradientIsApplied) {
  FakeModel model = make_model(ComputeType::kFp32, 1, 1, kChunkNumel);
  model.poison_step = 1;
  auto job = start({.model = model, .norms = 1});
  Reference reference(model);
  ASSERT_TRUE(job->step(1).ok());
  EXPECT_FALSE(reference.step(make_record(1, 1)).skipped);
  EXPECT_TRUE(job->compare(reference).ok());
  EXPECT_TRUE(std::isnan(reference.masters(0)[3]));
  leave(*job);
}

// What elixird does not see (chunks placed on the GPU) counts in the norm.
TEST_F(Gradients, TheTrainersSquaresAreAddedUp) {
  const FakeModel model = make_model(ComputeType::kFp32, 2, kChunks, kChunkNumel);
  auto job = start({.model = model, .norms = 1});
  Reference reference(model);
  shm::StepRecord record = clipping(1, 2, 5.0);
  NormSum more = {};
  job->publish(1);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    shm::StepRecord mine = record;
    add_leaf(mine.norm, 1e6 + rank);
    add(more, mine.norm);
    job->rank(rank).post(mine);
  }
  ASSERT_TRUE(job->wait_finished(1).ok());
  const optim::Verdict verdict = reference.step(record, 1, more);
  EXPECT_GT(verdict.grad_norm, 700);
  expect_verdict(*job, 1, verdict, 1);
  EXPECT_TRUE(job->compare(reference).ok());
  // One that is not finite there skips the step here.
  record = clipping(2, 2, 5.0);
  job->publish(2);
  job->rank(0).post(record);
  record.norm.nonfinite = 1;
  job->rank(1).post(record);
  ASSERT_TRUE(job->wait_finished(2).ok());
  EXPECT_EQ(job->rank(0).step_result(2).skipped, 1u);
  EXPECT_TRUE(job->compare(reference).ok());
  leave(*job);
}

// Posted by all, then a death: the squares, the verdict and the update still come.
TEST_F(Gradients, AClippedStepThatAllHavePostedIsFinishedBeforeTheFault) {
  for (const uint32_t accumulate : {1u, 2u}) {
    const FakeModel model = make_model(ComputeType::kBf16, 2, kChunks, kChunkNumel);
    auto job = start({.model = model, .accumulate = accumulate, .norms = 1});
    const shm::StepRecord record = clipping(1, 2, 1.0);
    for (uint32_t rank = 0; rank < 2; ++rank) {
      job->write_grads(rank, 1);
      job->rank(rank).post_silently(record);
    }
    job->rank(1).die();
    ASSERT_TRUE(job->rank(0).wait_session_fault().ok());
    EXPECT_EQ(job->rank(0).header().finished_step.load(), 1u);
    Reference reference(model);
    reference.step(record);
    EXPECT_TRUE(job->compare(reference).ok());
  }
}

TEST_F(Gradients, HostileSquaresSpoilTheirOwnStepAlone) {
  const FakeModel model = make_model(ComputeType::kFp32, 1, 1, kChunkNumel);
  auto job = start({.model = model});
  shm::StepRecord record = clipping(1, 1, 1);
  for (uint64_t& limb : record.norm.limb) limb = ~uint64_t{0};
  job->publish(1);
  job->post(record);
  EXPECT_TRUE(job->wait_finished(1).ok());
  EXPECT_GT(job->rank(0).step_result(1).grad_norm, 1e50);
  leave(*job);
}

TEST_F(Gradients, StatusSaysWhatBecameOfTheLastStep) {
  FakeModel model = make_model(ComputeType::kFp32, 2, 1, kChunkNumel);
  model.poison_step = 2;
  auto job = start({.name = "told", .model = model, .norms = 1});
  for (uint32_t step = 1; step <= 3; ++step) {
    job->publish(step);
    for (uint32_t rank = 0; rank < 2; ++rank) {
      shm::StepRecord record = clipping(step, 2, 1.0);
      record.step_ns = (10 + rank) * 1'000'000;
      record.exposed_ns = 2'000'000;
      record.h2d_ns = 3'000'000;
      record.d2h_ns = 4'000'000;
      record.d2d_bytes = 77;
      job->rank(rank).post(record);
    }
    ASSERT_TRUE(job->wait_finished(step).ok());
  }
  const auto json = nlohmann::json::parse(daemon_->ask_status());
  nlohmann::json mine;
  for (const auto& entry : json["jobs"]) {
    if (entry["job"] == "told") mine = entry;
  }
  ASSERT_FALSE(mine.is_null()) << json;
  EXPECT_EQ(mine["steps_done"], 3);
  EXPECT_EQ(mine["skipped"], 1);
  EXPECT_EQ(mine["applied"], 2);
  const shm::StepResult result = job->rank(0).step_result(3);
  EXPECT_DOUBLE_EQ(mine["grad_norm"].get<double>(), result.grad_norm);
  EXPECT_DOUBLE_EQ(mine["grad_scale"].get<double>(), result.grad_scale);
  EXPECT_DOUBLE_EQ(mine["update_ms"].get<double>(),
                   static_cast<double>(job->rank(0).update_result(3).update_ns) * 1e-6);
  EXPECT_DOUBLE_EQ(mine["step_ms"].get<double>(), 10.5);
  EXPECT_DOUBLE_EQ(mine["exposed_ms"].get<double>(), 2);
  EXPECT_DOUBLE_EQ(mine["h2d_ms"].get<double>(), 3);
  EXPECT_DOUBLE_EQ(mine["d2h_ms"].get<double>(), 4);
  EXPECT_EQ(mine["d2d_bytes"], 77);
  leave(*job);
}

}  // namespace
}  // namespace elixir::testing::clipped_steps
