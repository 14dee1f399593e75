// As many ranks as a node may have, through a real elixird: what counts ranks in bits of a word.

#include <gtest/gtest.h>

#include "tests/daemon/gradients_fixture.h"

namespace elixir::testing::ranks {
namespace {

constexpr uint32_t kRanks = shm::kMaxLocalRanks;
constexpr uint32_t kChunks = 3;
constexpr uint64_t kChunkNumel =
    shm::kAlignNumel * 10;  // so tiny that most ranks keep nothing of it

class SixtyFour : public Gradients {};

// With accumulation and clipping, then one of them dies.
TEST_F(SixtyFour, RanksOfTheHostExchangeAndADeath) {
  const FakeModel model = make_model(ComputeType::kBf16, kRanks, kChunks, kChunkNumel);
  auto job = start({.model = model, .accumulate = 2, .norms = 1});
  Reference reference(model);
  for (uint32_t step = 1; step <= 3; ++step) {
    for (uint32_t round = 1; round <= 2; ++round) {
      if (round > 1) {
        ASSERT_TRUE(job->wait_taken().ok());
      }
      job->publish(step, round);
    }
    const shm::StepRecord record = clipping(step, kRanks, 0.5);
    job->post(record);
    ASSERT_TRUE(job->wait_finished(step).ok());
    expect_verdict(*job, step, reference.step(record, 2), step);
    const Status same = job->compare(reference);
    ASSERT_TRUE(same.ok()) << "step " << step << ": " << same.message();
  }
  job->rank(kRanks - 1).die();
  for (uint32_t rank = 0; rank + 1 < kRanks; ++rank) {
    const auto fault = job->rank(rank).wait_session_fault();
    ASSERT_TRUE(fault.ok()) << rank << ": " << fault.status().message();
    EXPECT_EQ(fault->code, static_cast<uint32_t>(Code::kPeerLost));
    EXPECT_EQ(fault->rank, kRanks - 1);
  }
}

// Each brings the sum of its shard; chunks are as long as it takes for all to have one.
TEST_F(SixtyFour, RanksOfTheCollectiveExchange) {
  const FakeModel whole = make_model(ComputeType::kFp32, 1, kChunks, shm::kAlignNumel * kRanks);
  shm::Shape shape = whole.shape;
  shape.ranks = kRanks;
  shape.exchange = shm::Exchange::kCollective;
  const auto shard = [&](const auto& chunk, uint32_t rank, uint64_t unit) {
    auto part = chunk;
    part.assign(chunk.begin() + static_cast<long>(shape.shard_begin(rank) * unit),
                chunk.begin() + static_cast<long>(shape.shard_end(rank) * unit));
    part.resize(shape.grad_slot_numel() * unit);
    return part;
  };
  std::vector<std::unique_ptr<FakeTrainer>> ranks;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    auto trainer = FakeTrainer::attach({.folder = daemon_->folder(),
                                        .job = "shards",
                                        .rank = rank,
                                        .shape = shape,
                                        .places = whole.places});
    ASSERT_TRUE(trainer.ok()) << rank << ": " << trainer.status().message();
    ranks.push_back(std::move(*trainer));
  }
  for (auto& rank : ranks) ASSERT_TRUE(rank->await_peers().ok() && rank->hello().ok());
  const std::vector<std::vector<float>> initial = initial_values(whole);
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    std::vector<std::vector<float>> shards;
    for (const auto& chunk : initial) shards.push_back(shard(chunk, rank, 1));
    ASSERT_TRUE(ranks[rank]->load(shards).ok());
  }
  for (auto& rank : ranks) ASSERT_TRUE(rank->await_ready().ok());
  Reference reference(whole);
  for (uint32_t step = 1; step <= 2; ++step) {
    const shm::StepRecord record = make_record(step, 1);
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
        const auto grads = shard(fake_gradient(whole, 0, chunk, step), rank, sizeof(float));
        ranks[rank]->write_grads(chunk, grads.data(), step);
      }
      ranks[rank]->post(record);
    }
    for (auto& rank : ranks) ASSERT_TRUE(rank->wait_finished(step).ok());
    reference.step(record);
    for (const shm::ParameterPlace& place : whole.places) {
      const std::vector<float> have = ranks[0]->masters(place.chunk);
      const std::vector<float> want = reference.masters(place.chunk);
      for (uint64_t i = place.offset; i < place.offset + place.numel; ++i) {
        ASSERT_EQ(have[i], want[i]) << place.name << " element " << i << " step " << step;
      }
    }
  }
  leave(ranks);
}

}  // namespace
}  // namespace elixir::testing::ranks
