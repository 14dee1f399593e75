// Accumulation, immediate updates, groups of parameters: through a real elixird, against the scalar
// reference.

#include <gtest/gtest.h>

#include "tests/daemon/gradients_fixture.h"

namespace elixir::testing::rounds {
namespace {

constexpr uint64_t kChunkNumel = 128 * 37;
constexpr uint32_t kChunks = 4;

class Rounds : public Gradients {};

TEST_F(Rounds, AccumulationEqualsTheReference) {
  for (const ComputeType type : {ComputeType::kFp32, ComputeType::kBf16}) {
    for (const uint32_t ranks : {1u, 2u}) {
      for (const uint32_t declared : {2u, 4u}) {
        const FakeModel model = make_model(type, ranks, kChunks, kChunkNumel);
        auto job = start({.model = model, .accumulate = declared});
        Reference reference(model);
        for (uint32_t step = 1; step <= 6; ++step) {
          const uint32_t rounds = step == 2 ? 1 : step == 4 ? declared + 1 : declared;
          for (uint32_t round = 1; round <= rounds; ++round) {
            if (round > 1) {
              ASSERT_TRUE(job->wait_taken().ok());
            }
            job->publish(step, round);
          }
          const shm::StepRecord record = make_record(step, ranks);
          job->post(record);
          ASSERT_TRUE(job->wait_finished(step).ok());
          reference.step(record, rounds);
          const Status same = job->compare(reference);
          ASSERT_TRUE(same.ok()) << "step " << step << ": " << same.message();
        }
        leave(*job);
      }
    }
  }
}

// The trainer did not say that a step would have several.
TEST_F(Rounds, ASecondGradientThatWasNotDeclaredIsSummedInFp32) {
  for (const uint32_t ranks : {1u, 2u}) {
    const FakeModel model = make_model(ComputeType::kBf16, ranks, kChunks, kChunkNumel);
    auto job = start({.model = model, .norms = ranks == 2 ? 1u : 0u});
    Reference reference(model);
    for (uint32_t step = 1; step <= 6; ++step) {
      const uint32_t rounds = step == 2 || step == 5 ? 3 : 1;
      for (uint32_t round = 1; round <= rounds; ++round) {
        if (round > 1) {
          for (auto& rank : job->ranks()) {
            for (uint32_t chunk = 0; chunk < kChunks; ++chunk) rank->request_sum(chunk);
          }
          ASSERT_TRUE(job->wait_taken().ok());
        }
        job->publish(step, round);
      }
      if (rounds > 1) {  // the last one may come behind the post, or be asked for before
        for (uint32_t chunk = 0; chunk < kChunks; ++chunk) job->rank(0).request_sum(chunk);
      }
      const shm::StepRecord record = clipping(step, ranks, 1.0);
      job->post(record);
      ASSERT_TRUE(job->wait_finished(step).ok());
      reference.step(record, rounds);
      const Status same = job->compare(reference);
      ASSERT_TRUE(same.ok()) << "step " << step << ": " << same.message();
    }
    leave(*job);
  }
}

// Gradients that are thrown away (zero_grad) leave nothing behind.
TEST_F(Rounds, WhatIsPublishedAgainReplacesWhatWas) {
  for (const uint32_t accumulate : {1u, 2u}) {
    const FakeModel model = make_model(ComputeType::kBf16, 2, kChunks, kChunkNumel);
    auto job = start({.model = model, .accumulate = accumulate, .norms = 1});
    Reference reference(model);
    for (uint32_t step = 1; step <= 3; ++step) {
      for (auto& rank : job->ranks()) {
        for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
          const auto other = fake_gradient(model, 0, chunk, step + 50);
          rank->write_grads(chunk, other.data(), step);
          rank->ring_grads(chunk);
        }
      }
      if (accumulate > 1) {
        ASSERT_TRUE(job->wait_taken().ok());
      }
      for (auto& rank : job->ranks()) rank->discard();
      for (uint32_t round = 1; round <= accumulate; ++round) {
        if (round > 1) {
          ASSERT_TRUE(job->wait_taken().ok());
        }
        job->publish(step, round);
      }
      const shm::StepRecord record = clipping(step, 2, 1.0);
      job->post(record);
      ASSERT_TRUE(job->wait_finished(step).ok());
      expect_verdict(*job, step, reference.step(record, accumulate), step);
      const Status same = job->compare(reference);
      ASSERT_TRUE(same.ok()) << "step " << step << ": " << same.message();
    }
    leave(*job);
  }
}

// A rank is ahead: it has dropped a pass, made the first of those that count, and asks for its sum,
// while the other rank is at the pass that is to be dropped, or, with `asks`, waits for its sum.
TEST_F(Rounds, ARankMayBeADiscardAhead) {
  for (const uint32_t ahead : {0u, 1u}) {
    for (const bool asks : {false, true}) {
      for (const uint32_t norms : {0u, 1u}) {
        const FakeModel model = make_model(ComputeType::kBf16, 2, kChunks, kChunkNumel);
        auto job = start({.model = model, .norms = norms});
        Reference reference(model);
        const auto publish = [&](uint32_t rank, uint32_t step, uint32_t as_if, uint32_t round) {
          for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
            const auto grads = fake_gradient(model, rank, chunk, as_if, round);
            job->rank(rank).write_grads(chunk, grads.data(), step, round);
            if (norms != 0) job->rank(rank).ring_grads(chunk);
          }
        };
        const auto request = [&](uint32_t rank) {
          for (uint32_t chunk = 0; chunk < kChunks; ++chunk) job->rank(rank).request_sum(chunk);
        };
        const auto wait_taken = [&](uint32_t rank) {
          for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
            ASSERT_TRUE(job->rank(rank).wait_taken(chunk).ok()) << chunk;
          }
        };
        for (uint32_t step = 1; step <= 3; ++step) {
          const uint32_t behind = 1 - ahead, other = step + 50;
          publish(behind, step, other, 1);
          publish(ahead, step, other, 1);
          job->rank(ahead).discard();
          publish(ahead, step, step, 1);
          request(ahead);
          if (asks) {
            request(behind);
            wait_taken(behind);
            publish(behind, step, other, 2);
          }
          for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
            const uint32_t published =
                job->rank(ahead).grad_record(chunk).grad_publication.load().revision;
            EXPECT_LT(job->rank(ahead).chunk_record(chunk).grad_taken.load(), published);
          }
          job->rank(behind).discard();
          publish(behind, step, step, 1);
          request(behind);
          wait_taken(ahead);
          wait_taken(behind);
          job->publish(step, 2);
          for (uint32_t rank = 0; rank < 2; ++rank) request(rank);
          const shm::StepRecord record = clipping(step, 2, 1.0);
          job->post(record);
          ASSERT_TRUE(job->wait_finished(step).ok());
          expect_verdict(*job, step, reference.step(record, 2), step);
          const Status same = job->compare(reference);
          ASSERT_TRUE(same.ok()) << "step " << step << ": " << same.message();
        }
        leave(*job);
      }
    }
  }
}

TEST_F(Rounds, ImmediateUpdatesHaveTheBitsOfDeferredOnes) {
  for (const ComputeType type : {ComputeType::kFp32, ComputeType::kBf16}) {
    for (const uint32_t ranks : {1u, 2u}) {
      for (const uint32_t accumulate : {1u, 3u}) {
        const FakeModel model = make_model(type, ranks, kChunks, kChunkNumel);
        auto job = start({.model = model, .accumulate = accumulate, .immediate = 1});
        Reference reference(model);
        for (uint32_t step = 1; step <= 10; ++step) {
          shm::StepRecord record = make_record(step, ranks);
          // In the fourth step there are fewer rounds than declared: what is left is done at the
          // post.
          const uint32_t rounds = step == 4 ? 1 : accumulate;
          for (auto& rank : job->ranks()) rank->open(record);
          for (uint32_t round = 1; round <= rounds; ++round) {
            if (round > 1) {
              ASSERT_TRUE(job->wait_taken().ok());
            }
            job->publish(step, round);
          }
          if (rounds == accumulate) {  // all is updated before the post
            for (auto& rank : job->ranks()) {
              for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
                ASSERT_TRUE(rank->wait_param(chunk, step).ok());
                const shm::ChunkRecord& times = rank->chunk_record(chunk);
                EXPECT_GT(times.update_begin_ns.load(), 0u);
                EXPECT_GE(times.update_end_ns.load(), times.update_begin_ns.load());
              }
              EXPECT_EQ(rank->header().committed_step.load(), step - 1);
            }
          }
          record.metric = 3;
          job->post(record);
          ASSERT_TRUE(job->wait_finished(step).ok());
          expect_verdict(*job, step, reference.step(record, rounds), step);
          EXPECT_GT(job->rank(0).update_result(step).update_ns, 0u);
          EXPECT_EQ(job->rank(0).update_result(step).updated_numel, shm::total_numel(model.places));
          const Status same = job->compare(reference);
          ASSERT_TRUE(same.ok()) << "step " << step << ": " << same.message();
        }
        leave(*job);
      }
    }
  }
}

TEST_F(Rounds, LostDoorbellsAreNoticedAndCounted) {
  loses_doorbells_ = true;
  const FakeModel model = make_model(ComputeType::kFp32, 1, 2, kChunkNumel);
  auto job = start({.model = model, .immediate = 1});
  job->rank(0).open(make_record(1, 1));
  job->write_grads(0, 1);
  for (uint32_t chunk = 0; chunk < 2; ++chunk) {
    EXPECT_TRUE(job->rank(0).wait_param(chunk, 1).ok());
  }
  EXPECT_TRUE(becomes_true([&] { return lost_doorbells() - lost_before_ == 2; }))
      << "of two chunks";
  job->rank(0).post_silently(make_record(1, 1));
  EXPECT_TRUE(job->wait_finished(1).ok());
  EXPECT_TRUE(becomes_true([&] { return lost_doorbells() - lost_before_ == 3; }));
  leave(*job);
}

TEST_F(Rounds, EachGroupHasItsHyperparameters) {
  for (const uint32_t immediate : {0u, 1u}) {
    FakeModel model = make_model(ComputeType::kBf16, 2, kChunks, kChunkNumel);
    for (uint32_t i = 0; i < model.places.size(); ++i) model.groups.push_back(i % 3);
    auto job = start({.model = model, .immediate = immediate});
    Reference reference(model);
    FakeModel plain = model;
    plain.groups.clear();
    Reference without_groups(plain);
    for (uint32_t step = 1; step <= 4; ++step) {
      shm::StepRecord record = make_record(step, 2);
      record.n_groups = 3;
      record.groups[1] = {3e-3, 0, {0.5, 0.999, 1e-6}};
      record.groups[2] = {0, 0.5, {0.9, 0.95, 1e-8}};
      for (auto& rank : job->ranks()) rank->open(record);
      job->publish(step);
      job->post(record);
      ASSERT_TRUE(job->wait_finished(step).ok());
      reference.step(record);
      without_groups.step(record);
      const Status same = job->compare(reference);
      ASSERT_TRUE(same.ok()) << "step " << step << ": " << same.message();
      EXPECT_FALSE(job->compare(without_groups).ok());
    }
    leave(*job);
  }
}

// As torch::optim, which leaves a parameter alone whose .grad is undefined: neither decay nor
// moments, and its own count of steps stands still.
TEST_F(Rounds, WhatHasNoGradientStaysAsItIs) {
  for (const uint32_t immediate : {0u, 1u}) {
    FakeModel model = make_model(ComputeType::kBf16, 2, kChunks, kChunkNumel);
    for (uint32_t i = 0; i < model.places.size(); ++i) model.groups.push_back(i % 2);
    const FakeModel all = model;
    // All of chunk 0 in step 2, one place of each in others, and one from the beginning on.
    model.unused = [](uint32_t place, uint32_t step) {
      return (step == 2 && place < 2) || (step + place) % 3 == 0 || (step < 4 && place == 3);
    };
    auto job = start({.model = model, .immediate = immediate});
    Reference reference(model), without(all);
    for (uint32_t step = 1; step <= 7; ++step) {
      shm::StepRecord record = make_record(step, 2);
      record.rule = 1;
      record.n_groups = 2;
      record.groups[1] = {3e-3, 0.2, {0.8, 0.9, 1e-8}};
      for (auto& rank : job->ranks()) rank->open(record);
      job->publish(step);
      job->post(record);
      ASSERT_TRUE(job->wait_finished(step).ok());
      reference.step(record);
      without.step(record);
      const Status same = job->compare(reference);
      ASSERT_TRUE(same.ok()) << "step " << step << ": " << same.message();
      EXPECT_FALSE(job->compare(without).ok());
    }
    leave(*job);
  }
}

// A gradient on one rank is enough; ranks that name different groups are told.
TEST_F(Rounds, RanksSayTogetherWhatHasAGradient) {
  const FakeModel model = make_model(ComputeType::kFp32, 2, 2, kChunkNumel);
  auto job = start({.model = model});
  Reference reference(model);
  job->write_grads(0, 1);
  job->write_grads(1, 1);
  job->rank(0).grad_groups(1)[0].store(shm::kNoGradient);
  job->rank(1).grad_groups(1)[3].store(shm::kNoGradient);
  job->post(make_record(1, 2));
  ASSERT_TRUE(job->wait_finished(1).ok());
  reference.step(make_record(1, 2));
  const Status same = job->compare(reference);
  EXPECT_TRUE(same.ok()) << same.message();
  job->write_grads(0, 2);
  job->write_grads(1, 2);
  job->rank(1).grad_groups(2)[0].store(2);
  shm::StepRecord record = make_record(2, 2);
  record.n_groups = 2;
  job->post(record);
  expect_fault(*job, 1, "of group 1, and of group 0 on a rank before");
}

TEST_F(Rounds, TwoJobsAtOnceKeepApart) {
  const FakeModel first = make_model(ComputeType::kBf16, 2, kChunks, kChunkNumel);
  const FakeModel second = make_model(ComputeType::kFp32, 1, kChunks, kChunkNumel * 3);
  auto clipped = start({.name = "clipped", .model = first, .accumulate = 2, .norms = 1});
  auto immediate = start({.name = "immediate", .model = second, .immediate = 1});
  Reference of_clipped(first), of_immediate(second);
  for (uint32_t step = 1; step <= 6; ++step) {
    const shm::StepRecord record = make_record(step, 1);
    immediate->rank(0).open(record);
    clipped->publish(step, 1);
    immediate->publish(step);
    ASSERT_TRUE(clipped->wait_taken().ok());
    clipped->publish(step, 2);
    clipped->post(clipping(step, 2, 1.0));
    immediate->post(record);
    ASSERT_TRUE(clipped->wait_finished(step).ok());
    ASSERT_TRUE(immediate->wait_finished(step).ok());
    of_clipped.step(clipping(step, 2, 1.0), 2);
    of_immediate.step(record);
    EXPECT_TRUE(clipped->compare(of_clipped).ok()) << step;
    EXPECT_TRUE(immediate->compare(of_immediate).ok()) << step;
  }
  leave(*clipped);
  leave(*immediate);
}

TEST_F(Rounds, ImmediateJobsAreHeldToTheirWord) {
  const FakeModel model = make_model(ComputeType::kFp32, 2, 2, kChunkNumel);
  const auto begin = [&](uint32_t accumulate) {
    auto job = start({.model = model, .accumulate = accumulate, .immediate = 1});
    for (auto& rank : job->ranks()) rank->open(make_record(1, 2));
    return job;
  };
  {
    SCOPED_TRACE("one round more than declared");
    auto job = begin(1);
    job->publish(1);
    for (uint32_t chunk = 0; chunk < 2; ++chunk) {
      ASSERT_TRUE(job->rank(0).wait_param(chunk, 1).ok());
    }
    const auto grads = fake_gradient(model, 1, 0, 1, 2);
    job->rank(1).write_grads(0, grads.data(), 1, 2);
    job->rank(1).ring_grads(0);
    expect_fault(*job, 1, "1 backward passes a step were declared");
  }
  {
    SCOPED_TRACE("other hyperparameters at the post");
    auto job = begin(1);
    job->publish(1);
    for (uint32_t chunk = 0; chunk < 2; ++chunk) {
      ASSERT_TRUE(job->rank(0).wait_param(chunk, 1).ok());
    }
    shm::StepRecord record = make_record(1, 2);
    record.groups[0].lr *= 2;
    job->post(record);
    expect_fault_of_either(*job, "lr of group 0 is 0.02, not 0.01 as when the step was opened");
  }
  {
    SCOPED_TRACE("clipping");
    auto job = begin(1);
    job->post(1);  // gradients and a record, then another one
    ASSERT_TRUE(job->wait_finished(1).ok());
    for (auto& rank : job->ranks()) rank->open(clipping(2, 2, 1.0));
    job->publish(2);
    expect_fault_of_either(*job, "with immediate updates both must be 0");
  }
  {
    SCOPED_TRACE("gradients of a step that was not opened");
    auto job = start({.model = model, .immediate = 1});
    job->rank(0).open(make_record(1, 2));
    job->publish(1);
    expect_fault(*job, 1, "open_step is 0");
  }
}

TEST_F(Rounds, FaultsOfPublications) {
  const FakeModel model = make_model(ComputeType::kFp32, 2, 2, kChunkNumel);
  {
    SCOPED_TRACE("a chunk that is not there");
    auto job = start({.model = model, .norms = 1});
    job->rank(1).ring_grads(2);
    expect_fault(*job, 1, "gradients of chunk 2 of 2");
  }
  {
    SCOPED_TRACE("a group without hyperparameters");
    FakeModel grouped = model;
    grouped.groups = {0, 1, 0, 0};
    auto job = start({.model = grouped});
    job->post(1);
    expect_fault_of_either(*job, "is of group 1, and there are 1");
  }
  {
    SCOPED_TRACE("one rank discards its gradients");
    auto job = start({.model = model, .accumulate = 4});
    job->publish(1, 1);
    ASSERT_TRUE(job->wait_taken().ok());
    job->rank(1).discard();
    for (uint32_t rank = 0; rank < 2; ++rank) {
      for (uint32_t chunk = 0; chunk < 2; ++chunk) {
        const auto grads = fake_gradient(model, rank, chunk, 1);
        job->rank(rank).write_grads(chunk, grads.data(), 1, 2 - rank);
        job->rank(rank).ring_grads(chunk);
      }
    }
    job->post(make_record(1, 2));
    expect_fault_of_either(*job, "discard the same backward passes");
  }
  {
    SCOPED_TRACE("a discard that does not come to all chunks");
    auto job = start({.model = model});
    for (uint32_t rank = 0; rank < 2; ++rank) job->write_grads(rank, 1);
    job->rank(1).discard();
    job->rank(1).write_grads(0, fake_gradient(model, 1, 0, 1).data(), 1);
    job->post(make_record(1, 2));
    expect_fault(*job, 1, "(revision 1) in chunk 1, which it has discarded since");
  }
  {
    SCOPED_TRACE("what was summed once more");
    auto job = start({.model = model, .accumulate = 2});
    job->publish(1, 1);
    ASSERT_TRUE(job->wait_taken().ok());
    job->rank(1).write_grads(0, fake_gradient(model, 1, 0, 1).data(), 1);
    job->rank(1).ring_grads(0);
    expect_fault(*job, 1, "and nothing was discarded");
  }
}

// Ranks that differ in what they declare are not of one job.
TEST_F(Rounds, AllRanksOfAJobDeclareTheSame) {
  const FakeModel model = make_model(ComputeType::kFp32, 2, 1, kChunkNumel);
  FakeTrainer::Options options{.folder = daemon_->folder(),
                               .job = "declared",
                               .shape = model.shape,
                               .places = model.places,
                               .accumulate = 2};
  const auto first = FakeTrainer::attach(options);
  ASSERT_TRUE(first.ok()) << first.status().message();
  options.rank = 1;
  options.accumulate = 3;
  const auto second = FakeTrainer::attach(options);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::kInvalidArgument);
  EXPECT_NE(second.status().message().find("accumulation"), std::string::npos);
}

}  // namespace
}  // namespace elixir::testing::rounds
