// The collective exchange through a real elixird, against the scalar reference.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/daemon/gradients_fixture.h"

namespace elixir::testing::shards {
namespace {

constexpr uint64_t kChunkNumel = 128 * 37;

// A node with ranks 1 and 2 of three: each brings the sums of its shard,
// and the squares of all gradients in its record.
class Shards : public Gradients {
 protected:
  struct Node {
    FakeModel whole;  // one rank: gradients are sums already
    shm::Shape shape;
    std::vector<std::unique_ptr<FakeTrainer>> ranks;

    template <typename T>
    std::vector<T> shard(const std::vector<T>& chunk, uint32_t local, uint64_t unit) const {
      std::vector<T> part(shape.shard_numel() * unit);
      std::copy(chunk.begin() + static_cast<long>(shape.shard_begin(local + 1) * unit),
                chunk.begin() + static_cast<long>(shape.shard_end(local + 1) * unit), part.begin());
      return part;
    }
  };

  static Node start_node(uint32_t accumulate) {
    Node node;
    node.whole = make_model(ComputeType::kBf16, 1, 3, kChunkNumel);
    node.shape = node.whole.shape;
    node.shape.ranks = 3;
    node.shape.exchange = shm::Exchange::kCollective;
    for (uint32_t local = 0; local < 2; ++local) {
      auto trainer = FakeTrainer::attach({.folder = daemon_->folder(),
                                          .job = "shards",
                                          .rank = local + 1,
                                          .first_rank = 1,
                                          .local_ranks = 2,
                                          .shape = node.shape,
                                          .places = node.whole.places,
                                          .accumulate = accumulate,
                                          .norms = 1});
      EXPECT_TRUE(trainer.ok()) << trainer.status().message();
      node.ranks.push_back(std::move(*trainer));
    }
    for (auto& rank : node.ranks) EXPECT_TRUE(rank->await_peers().ok() && rank->hello().ok());
    for (uint32_t local = 0; local < 2; ++local) {
      std::vector<std::vector<float>> shards;
      for (const auto& chunk : initial_values(node.whole)) {
        shards.push_back(node.shard(chunk, local, 1));
      }
      EXPECT_TRUE(node.ranks[local]->load(shards).ok());
    }
    return node;
  }
  static void publish(Node& node, uint32_t step, uint32_t round) {
    for (uint32_t local = 0; local < 2; ++local) {
      for (uint32_t chunk = 0; chunk < 3; ++chunk) {
        const auto grads = fake_gradient(node.whole, 0, chunk, step, round);
        if (round > 1) {
          EXPECT_TRUE(node.ranks[local]->wait_taken(chunk).ok());
        }
        node.ranks[local]->write_grads(chunk, node.shard(grads, local, 2).data(), step, round);
        node.ranks[local]->ring_grads(chunk);
      }
    }
  }
};

TEST_F(Shards, RoundsAreSummedAndTheTrainersSquaresJudge) {
  for (const uint32_t accumulate : {1u, 3u}) {
    Node node = start_node(accumulate);
    Reference reference(node.whole);
    for (uint32_t step = 1; step <= 3; ++step) {
      for (uint32_t round = 1; round <= accumulate; ++round) publish(node, step, round);
      shm::StepRecord record = clipping(step, 1, 0.01);
      const optim::Verdict verdict = reference.step(record, accumulate);
      // The same number, as the trainers would have found it.
      const double square = verdict.grad_norm * verdict.grad_norm;
      add_leaf(record.norm, square);
      for (auto& rank : node.ranks) rank->post(record);
      for (auto& rank : node.ranks) {
        ASSERT_TRUE(rank->wait_finished(step).ok());
        EXPECT_DOUBLE_EQ(rank->step_result(step).grad_norm, verdict.grad_norm);
        EXPECT_EQ(rank->step_result(step).grad_scale,
                  optim::judge(record.norm, {1.0, 0.01, false}).grad_scale);
      }
      for (const shm::ParameterPlace& place : node.whole.places) {
        const std::vector<float> have = node.ranks[0]->masters(place.chunk);
        const std::vector<float> want = reference.masters(place.chunk);
        for (uint64_t i = std::max(place.offset, node.shape.shard_begin(1));
             i < place.offset + place.numel; ++i) {
          ASSERT_NEAR(have[i], want[i], 1e-6) << place.name << " element " << i << " step " << step;
        }
      }
    }
    leave(node.ranks);
  }
}

TEST_F(Shards, RanksThatFindAnotherNormAreRefused) {
  Node node = start_node(1);
  publish(node, 1, 1);
  shm::StepRecord record = clipping(1, 1, 0.01);
  add_leaf(record.norm, 4);
  node.ranks[0]->post(record);
  add_leaf(record.norm, 0x1p-200);
  node.ranks[1]->post(record);
  const Result<shm::SessionFault> fault = node.ranks[1]->wait_session_fault();
  ASSERT_TRUE(fault.ok()) << fault.status().message();
  EXPECT_EQ(fault->code, static_cast<uint32_t>(Code::kProtocol));
  EXPECT_NE(std::string(shm::get_text(fault->text)).find("the squares of all gradients"),
            std::string::npos);
}

}  // namespace
}  // namespace elixir::testing::shards
