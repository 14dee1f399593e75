// Whole steps through a real elixird: numbers, several ranks, several jobs, status.

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/compute_type_names.h"
#include "tests/daemon/daemon_process.h"
#include "tests/daemon/fake_job.h"

namespace elixir::testing::steps {
namespace {

constexpr uint64_t kChunkNumel = 128 * 37;  // no number of ranks here divides it into whole shards

struct Case {
  ComputeType type;
  uint32_t ranks;
};

class Steps : public ::testing::TestWithParam<Case> {
 protected:
  // One elixird for all cases: jobs must leave nothing that the next one could stumble over.
  static void SetUpTestSuite() {
    daemon_ = new DaemonProcess({"--workers", "2", "--test-slice-numel", "256"});
  }
  static void TearDownTestSuite() {
    delete daemon_;
    daemon_ = nullptr;
  }
  static nlohmann::json status_after(uint32_t step, const std::string& name);
  static DaemonProcess* daemon_;
};
DaemonProcess* Steps::daemon_ = nullptr;

TEST_P(Steps, EqualTheScalarReferenceBitForBit) {
  const FakeModel model = make_model(GetParam().type, GetParam().ranks, 3, kChunkNumel);
  auto job = FakeJob::start({.folder = daemon_->folder(), .name = "bits", .model = model});
  ASSERT_TRUE(job.ok()) << job.status().message();
  Reference reference(model);
  ASSERT_TRUE((*job)->compare(reference).ok()) << "initial weights";
  for (uint32_t step = 1; step <= 12; ++step) {  // more than the ring holds
    const Status status = (*job)->step(step);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_FALSE((*job)->compare(reference).ok()) << "step " << step << " changed nothing";
    reference.step(make_record(step, model.shape.ranks));
    const Status same = (*job)->compare(reference);
    ASSERT_TRUE(same.ok()) << "step " << step << ": " << same.message();
    for (auto& rank : (*job)->ranks()) {
      EXPECT_EQ(rank->step_result(step).step, step);
      EXPECT_DOUBLE_EQ(rank->step_result(step).metric_mean,
                       5.0 - 0.1 * step + (GetParam().ranks - 1) / 2.0);
      EXPECT_EQ(rank->update_result(step).updated_numel, shm::total_numel(model.places));
      EXPECT_GT(rank->update_result(step).update_ns, 0u);
      for (uint32_t chunk = 0; chunk < 3; ++chunk) EXPECT_EQ(rank->param_step(chunk), step);
    }
  }
  (*job)->detach();
}

INSTANTIATE_TEST_SUITE_P(TypesAndRanks, Steps,
                         ::testing::Values(Case{ComputeType::kFp32, 1}, Case{ComputeType::kFp32, 2},
                                           Case{ComputeType::kFp32, 3}, Case{ComputeType::kFp32, 5},
                                           Case{ComputeType::kBf16, 1}, Case{ComputeType::kBf16, 2},
                                           Case{ComputeType::kBf16, 3}, Case{ComputeType::kBf16, 5},
                                           Case{ComputeType::kFp16, 1}, Case{ComputeType::kFp16, 2},
                                           Case{ComputeType::kFp16, 3},
                                           Case{ComputeType::kFp16, 5}),
                         [](const auto& info) {
                           return fmt::format("{}_{}", compute_type_name(info.param.type),
                                              info.param.ranks);
                         });

// The smallest chunk gives the last ranks empty shards.
TEST_F(Steps, RanksWithEmptyShards) {
  const FakeModel model = make_model(ComputeType::kBf16, 5, 2, shm::kAlignNumel * 2);
  auto job = FakeJob::start({.folder = daemon_->folder(), .model = model});
  ASSERT_TRUE(job.ok()) << job.status().message();
  Reference reference(model);
  for (uint32_t step = 1; step <= 3; ++step) {
    ASSERT_TRUE((*job)->step(step).ok());
    reference.step(make_record(step, 5));
  }
  EXPECT_TRUE((*job)->compare(reference).ok());
  (*job)->detach();
}

// The collective exchange: this node has ranks 1 and 2 of three. Each loads its shard and brings
// the sum of its shard's gradients.
TEST_F(Steps, AShardOfItsOwnForEachRankOfTheCollectiveExchange) {
  FakeModel model = make_model(ComputeType::kBf16, 1, 3, kChunkNumel);
  Reference reference(model);  // one rank: gradients that are sums already
  const FakeModel whole = model;
  model.shape.ranks = 3;
  model.shape.exchange = shm::Exchange::kCollective;
  const shm::Shape& shape = model.shape;
  const std::vector<std::vector<float>> initial = initial_values(whole);

  std::vector<std::unique_ptr<FakeTrainer>> ranks;
  for (uint32_t rank = 1; rank <= 2; ++rank) {
    auto trainer = FakeTrainer::attach({.folder = daemon_->folder(),
                                        .job = "shards",
                                        .rank = rank,
                                        .first_rank = 1,
                                        .local_ranks = 2,
                                        .shape = shape,
                                        .places = model.places});
    ASSERT_TRUE(trainer.ok()) << trainer.status().message();
    ranks.push_back(std::move(*trainer));
  }
  const auto shard = [&](const auto& chunk, uint32_t rank, uint64_t unit) {
    auto part = chunk;
    part.assign(shape.shard_numel() * unit, {});
    std::copy(chunk.begin() + static_cast<long>(shape.shard_begin(rank) * unit),
              chunk.begin() + static_cast<long>(shape.shard_end(rank) * unit), part.begin());
    return part;
  };
  for (uint32_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(ranks[i]->await_peers().ok());
    ASSERT_TRUE(ranks[i]->hello().ok());
  }
  for (uint32_t i = 0; i < 2; ++i) {
    std::vector<std::vector<float>> shards;
    for (const auto& chunk : initial) shards.push_back(shard(chunk, i + 1, 1));
    ASSERT_TRUE(ranks[i]->load(shards).ok());
  }
  for (uint32_t step = 1; step <= 3; ++step) {
    const shm::StepRecord record = make_record(step, 1);
    for (uint32_t i = 0; i < 2; ++i) {
      for (uint32_t chunk = 0; chunk < 3; ++chunk) {
        const auto grads = fake_gradient(whole, 0, chunk, step);
        ranks[i]->write_grads(chunk, shard(grads, i + 1, 2).data(), step);
      }
      ranks[i]->post(record);
    }
    reference.step(record);
    for (auto& rank : ranks) ASSERT_TRUE(rank->wait_finished(step).ok());
    for (const shm::ParameterPlace& place : model.places) {
      const std::vector<float> have = ranks[0]->masters(place.chunk);
      const std::vector<float> want = reference.masters(place.chunk);
      const uint64_t begin = std::max(place.offset, shape.shard_begin(1));
      for (uint64_t i = begin; i < place.offset + place.numel; ++i) {
        ASSERT_EQ(have[i], want[i]) << place.name << " element " << i << " step " << step;
      }
    }
  }
  for (auto& rank : ranks) rank->detach();
}

TEST_F(Steps, AStepWithoutChunksOfHomeCpuIsFinishedAtOnce) {
  FakeModel model = make_model(ComputeType::kBf16, 1, 2, kChunkNumel);
  std::swap(model.shape.n_chunks, model.shape.n_gpu_chunks);
  auto job = FakeJob::attach({.folder = daemon_->folder(), .name = "resident", .model = model});
  ASSERT_TRUE(job.ok()) << job.status().message();
  ASSERT_TRUE((*job)->rank(0).await_ready().ok());
  for (uint32_t step = 1; step <= 12; ++step) {
    (*job)->rank(0).post(make_record(step, 1));
    ASSERT_TRUE((*job)->rank(0).wait_finished(step).ok());
  }
  (*job)->detach();
}

TEST_F(Steps, OneWorkerGivesTheSameBits) {
  const FakeModel model = make_model(ComputeType::kBf16, 2, 2, kChunkNumel);
  auto job = FakeJob::start({.folder = daemon_->folder(), .model = model, .workers = 1});
  ASSERT_TRUE(job.ok()) << job.status().message();
  Reference reference(model);
  for (uint32_t step = 1; step <= 3; ++step) {
    ASSERT_TRUE((*job)->step(step).ok());
    reference.step(make_record(step, 2));
  }
  EXPECT_TRUE((*job)->compare(reference).ok());
  (*job)->detach();
}

// Doorbells are hints: a step posted without one is found all the same.
TEST_F(Steps, ALostDoorbellIsNoticed) {
  const FakeModel model = make_model(ComputeType::kFp32, 2, 1, kChunkNumel);
  auto job = FakeJob::start({.folder = daemon_->folder(), .model = model});
  ASSERT_TRUE(job.ok()) << job.status().message();
  for (uint32_t rank = 0; rank < 2; ++rank) {
    (*job)->write_grads(rank, 1);
    (*job)->rank(rank).post_silently(make_record(1, 2));
  }
  EXPECT_TRUE((*job)->rank(0).wait_finished(1).ok());
  (*job)->detach();
}

TEST_F(Steps, SeveralJobsAtOnceKeepApart) {
  std::vector<std::unique_ptr<FakeJob>> jobs;
  std::vector<Reference> references;
  const ComputeType types[] = {ComputeType::kFp32, ComputeType::kBf16, ComputeType::kFp16};
  for (uint32_t i = 0; i < 3; ++i) {
    const FakeModel model = make_model(types[i], i + 1, 2 + i, kChunkNumel);
    auto job = FakeJob::start(
        {.folder = daemon_->folder(), .name = fmt::format("job-{}", i), .model = model});
    ASSERT_TRUE(job.ok()) << job.status().message();
    jobs.push_back(std::move(*job));
    references.emplace_back(model);
  }
  for (uint32_t step = 1; step <= 5; ++step) {
    for (auto& job : jobs) job->post(step);  // all in flight together
    for (uint32_t i = 0; i < 3; ++i) {
      for (auto& rank : jobs[i]->ranks()) ASSERT_TRUE(rank->wait_finished(step).ok());
      references[i].step(make_record(step, i + 1));
      EXPECT_TRUE(jobs[i]->compare(references[i]).ok()) << "job " << i << " step " << step;
    }
  }
  for (auto& job : jobs) job->detach();
}

// The event loop learns of a finished step a little later than the trainer.
nlohmann::json Steps::status_after(uint32_t step, const std::string& name) {
  nlohmann::json json;
  EXPECT_TRUE(becomes_true([&] {
    json = nlohmann::json::parse(daemon_->ask_status());
    return std::ranges::any_of(json["jobs"], [&](const nlohmann::json& entry) {
      return entry["job"] == name && entry["steps_done"] == step;
    });
  })) << "status never told of step "
      << step;
  return json;
}

TEST_F(Steps, StatusSaysWhatTheJobIs) {
  const FakeModel model = make_model(ComputeType::kBf16, 2, 4, kChunkNumel);
  auto job = FakeJob::start({.folder = daemon_->folder(), .name = "seen", .model = model});
  ASSERT_TRUE(job.ok()) << job.status().message();
  ASSERT_TRUE((*job)->step(1).ok());
  ASSERT_TRUE((*job)->step(2).ok());
  const auto json = status_after(2, "seen");
  EXPECT_EQ(json["daemon"]["pid"], daemon_->pid());
  EXPECT_EQ(json["daemon"]["threads_by_node"].begin().value(), 2);
  nlohmann::json mine;
  for (const auto& entry : json["jobs"]) {
    if (entry["job"] == "seen") mine = entry;
  }
  ASSERT_FALSE(mine.is_null()) << json;
  EXPECT_EQ(json["sessions"], json["jobs"]);  // for readers of 0.1
  EXPECT_EQ(mine["state"], "training");
  EXPECT_EQ(mine["ranks"], 2);
  EXPECT_EQ(mine["chunks"], 4);
  EXPECT_EQ(mine["chunk_numel"], kChunkNumel);
  EXPECT_EQ(mine["steps_done"], 2);
  EXPECT_EQ(mine["gathers_last_step"], 7);
  EXPECT_EQ(mine["params"], shm::total_numel(model.places));
  EXPECT_EQ(mine["host_bytes"], 2 * model.shape.session_bytes());
  const double numel = static_cast<double>(shm::total_numel(model.places));
  EXPECT_NEAR(mine["waste_ratio"].get<double>(), 4.0 * kChunkNumel / numel - 1, 1e-9);
  EXPECT_DOUBLE_EQ(mine["loss_last_step"].get<double>(), 4.8 + 0.5);  // the mean of both
  EXPECT_GT(mine["update_mparam_s"].get<double>(), 0);
  EXPECT_EQ(mine["pids"].size(), 2u);
  EXPECT_NE(daemon_->ask_status("stat").find("error"), std::string::npos);
  (*job)->detach();
}

}  // namespace
}  // namespace elixir::testing::steps
