// Which gradients are taken when: without threads, memory or a trainer.

#include "daemon/grad_tracker.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace elixir::daemon {
namespace {

struct Rules {
  uint32_t ranks = 1, n_chunks = 0, accumulate = 1;
  bool immediate = false, norms = false, early = false;

  GradTracker tracker() const {
    return {ranks, n_chunks, {accumulate, immediate ? 1u : 0u, norms ? 1u : 0u, early ? 1u : 0u}};
  }
};

// Ranks that publish as trainers do.
struct Ranks {
  Rules rules;
  GradTracker tracker;
  std::vector<uint32_t> revisions, discards;
  std::vector<ChunkTask> tasks;

  explicit Ranks(const Rules& rules)
      : rules(rules),
        tracker(rules.tracker()),
        revisions(rules.ranks * rules.n_chunks),
        discards(rules.ranks) {}

  Status publish(uint32_t rank, uint32_t chunk, uint32_t micro_step = 1) {
    return publish_step(rank, chunk, tracker.step(), micro_step);
  }
  Status publish_step(uint32_t rank, uint32_t chunk, uint32_t step, uint32_t micro_step = 1) {
    const uint32_t revision = ++revisions[chunk * rules.ranks + rank];
    return tracker.note(rank, chunk,
                        {step, micro_step, revision, rules.accumulate > 1, discards[rank]});
  }
  // What was published last is to be summed.
  Status request_sum(uint32_t rank, uint32_t chunk) {
    Publication last = tracker.noted(rank, chunk);
    last.to_sum = true;
    return tracker.note(rank, chunk, last);
  }
  void publish_all(uint32_t micro_step = 1) {
    for (uint32_t chunk = 0; chunk < rules.n_chunks; ++chunk) {
      for (uint32_t rank = 0; rank < rules.ranks; ++rank) {
        EXPECT_TRUE(publish(rank, chunk, micro_step).ok());
      }
    }
  }
  const std::vector<ChunkTask>& ready(const EarlyLimits& early = {}) {
    return tracker.start_ready(&tasks, early), tasks;
  }
  const std::vector<ChunkTask>& squares() { return tracker.start_squares(&tasks), tasks; }
  const std::vector<ChunkTask>& updates() { return tracker.start_updates(&tasks), tasks; }
  void next_step() {
    updates();
    tracker.next_step();
  }
};

// As many as there are bits in a word.
TEST(GradTracker, EachOf64RanksCounts) {
  Ranks all({.ranks = 64, .n_chunks = 1, .accumulate = 2});
  for (uint32_t micro_step = 1; micro_step <= 2; ++micro_step) {
    for (uint32_t rank = 0; rank < 63; ++rank) {
      ASSERT_TRUE(all.publish(rank, 0, micro_step).ok());
      EXPECT_FALSE(all.tracker.anything_ready()) << rank;
    }
    ASSERT_TRUE(all.publish(63, 0, micro_step).ok());
    ASSERT_TRUE(all.tracker.anything_ready());
    const std::vector<ChunkTask>& tasks = all.ready();
    ASSERT_EQ(tasks.size(), 1u);
    EXPECT_EQ(tasks[0].ranks, ~uint64_t{0});
    EXPECT_EQ(tasks[0].begins_sum, micro_step == 1);
  }
  for (uint32_t rank = 0; rank < 64; ++rank) all.tracker.note_posted(rank);
  all.next_step();
  EXPECT_EQ(all.tracker.step(), 2u);
}

TEST(GradTracker, NothingIsEarlyUnlessTheJobWantsIt) {
  Ranks ranks({.ranks = 2, .n_chunks = 3});
  ranks.publish_all();
  EXPECT_FALSE(ranks.tracker.anything_ready());
  ASSERT_EQ(ranks.updates().size(), 3u);
  for (uint32_t chunk = 0; chunk < 3; ++chunk) {
    EXPECT_EQ(ranks.tasks[chunk].chunk, chunk);
    EXPECT_TRUE(ranks.tasks[chunk].update);
    EXPECT_FALSE(ranks.tasks[chunk].sum_up || ranks.tasks[chunk].squares);
  }
  EXPECT_TRUE(ranks.updates().empty()) << "each once";
}

TEST(GradTracker, AChunkIsReadyOnceAllRanksHavePublishedIt) {
  Ranks ranks({.ranks = 3, .n_chunks = 2, .norms = true});
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_FALSE(ranks.tracker.anything_ready());
    EXPECT_TRUE(ranks.publish(rank, 1).ok());
  }
  EXPECT_TRUE(ranks.tracker.anything_ready());
  ASSERT_EQ(ranks.ready().size(), 1u);
  EXPECT_EQ(ranks.tasks[0].chunk, 1u);
  EXPECT_TRUE(ranks.tasks[0].squares);
  EXPECT_FALSE(ranks.tasks[0].sum_up || ranks.tasks[0].update);
  EXPECT_FALSE(ranks.tracker.anything_ready());
}

TEST(GradTracker, WhatWasNotedTwiceCountsOnce) {
  Ranks ranks({.ranks = 1, .n_chunks = 1, .norms = true});
  EXPECT_TRUE(ranks.publish(0, 0).ok());
  EXPECT_EQ(ranks.ready().size(), 1u);
  // The doorbell once more, an older step, and a step whose revision is not there yet.
  EXPECT_TRUE(ranks.tracker.note(0, 0, {1, 1, 1}).ok());
  EXPECT_TRUE(ranks.tracker.note(0, 0, {0, 1, 2}).ok());
  EXPECT_TRUE(ranks.tracker.note(0, 0, {2, 1, 2}).ok());
  EXPECT_FALSE(ranks.tracker.anything_ready());
  EXPECT_TRUE(ranks.squares().empty());
  ranks.next_step();
  EXPECT_TRUE(ranks.tracker.note(0, 0, {2, 1, 1}).ok()) << "about to publish";
  EXPECT_FALSE(ranks.tracker.anything_ready());
  EXPECT_TRUE(ranks.tracker.note(0, 0, {2, 1, 2}).ok());
  EXPECT_TRUE(ranks.tracker.anything_ready());
}

TEST(GradTracker, SquaresOfWhatWasPublishedAgainAreTakenAnew) {
  Ranks ranks({.ranks = 2, .n_chunks = 2, .norms = true});
  ranks.publish_all();
  EXPECT_EQ(ranks.ready().size(), 2u);
  EXPECT_TRUE(ranks.publish(0, 1).ok());
  EXPECT_FALSE(ranks.tracker.anything_ready()) << "the other rank has not";
  ASSERT_EQ(ranks.squares().size(), 1u);
  EXPECT_EQ(ranks.tasks[0].chunk, 1u);
  EXPECT_TRUE(ranks.squares().empty());
  EXPECT_EQ(ranks.updates().size(), 2u);
}

TEST(GradTracker, AtThePostSquaresOfAllChunksAreThere) {
  Ranks ranks({.ranks = 1, .n_chunks = 3});  // norms not announced: all at the post
  ranks.publish_all();
  EXPECT_EQ(ranks.squares().size(), 3u);
  EXPECT_TRUE(ranks.squares().empty());
}

TEST(GradTracker, MicroStepsAreSummedAndTheLastOneSquared) {
  Ranks ranks({.ranks = 2, .n_chunks = 1, .accumulate = 3, .norms = true});
  for (uint32_t micro_step = 1; micro_step <= 3; ++micro_step) {
    ranks.publish_all(micro_step);
    ASSERT_EQ(ranks.ready().size(), 1u);
    EXPECT_TRUE(ranks.tasks[0].sum_up);
    EXPECT_EQ(ranks.tasks[0].ranks, 3u);
    EXPECT_EQ(ranks.tasks[0].begins_sum, micro_step == 1);
    EXPECT_EQ(ranks.tasks[0].squares, micro_step == 3);
    EXPECT_FALSE(ranks.tasks[0].update);
  }
  EXPECT_TRUE(ranks.squares().empty());
  ASSERT_EQ(ranks.updates().size(), 1u);
  EXPECT_FALSE(ranks.tasks[0].sum_up);
}

TEST(GradTracker, FewerMicroStepsLackTheirSquaresAtThePost) {
  Ranks ranks({.ranks = 1, .n_chunks = 1, .accumulate = 3, .norms = true});
  ranks.publish_all(1);
  EXPECT_FALSE(ranks.ready()[0].squares);
  ASSERT_EQ(ranks.squares().size(), 1u);
  EXPECT_TRUE(ranks.tasks[0].squares);
  EXPECT_FALSE(ranks.tasks[0].sum_up) << "nothing is new";
}

TEST(GradTracker, MoreMicroStepsGoOn) {
  Ranks ranks({.ranks = 1, .n_chunks = 1, .accumulate = 2, .norms = true});
  for (uint32_t micro_step = 1; micro_step <= 4; ++micro_step) {
    ranks.publish_all(micro_step);
    ASSERT_EQ(ranks.ready().size(), 1u);
    EXPECT_EQ(ranks.tasks[0].squares, micro_step >= 2);
  }
  EXPECT_TRUE(ranks.squares().empty());
}

TEST(GradTracker, TheFirstAfterADiscardBeginsAnew) {
  Ranks ranks({.ranks = 1, .n_chunks = 1, .accumulate = 2});
  ranks.publish_all(1);
  EXPECT_TRUE(ranks.ready()[0].begins_sum);
  ++ranks.discards[0];
  ranks.publish_all(1);
  EXPECT_TRUE(ranks.ready()[0].begins_sum);
  ranks.publish_all(2);
  EXPECT_FALSE(ranks.ready()[0].begins_sum);
}

// Discarded after the last micro-step, whose squares were taken, and run with fewer.
TEST(GradTracker, SquaresOfWhatWasDiscardedAreTakenAnewAtThePost) {
  Ranks all({.ranks = 1, .n_chunks = 1, .accumulate = 2, .norms = true});
  for (const uint32_t micro_step : {1u, 2u, 1u}) {
    if (micro_step == 1) ++all.discards[0];
    ASSERT_TRUE(all.publish(0, 0, micro_step).ok());
    ASSERT_EQ(all.ready().size(), 1u);
    EXPECT_EQ(all.tasks[0].squares, micro_step == 2);
  }
  ASSERT_EQ(all.squares().size(), 1u) << "those taken were of gradients that are gone";
  EXPECT_TRUE(all.tasks[0].of_sums);
}

// A chunk that no backward pass before has touched: sums of the step before must not stay.
TEST(GradTracker, TheFirstOfAStepBeginsAnewWhateverItsNumber) {
  Ranks ranks({.ranks = 1, .n_chunks = 1, .accumulate = 2});
  ranks.publish_all(2);
  EXPECT_TRUE(ranks.ready()[0].begins_sum);
  EXPECT_TRUE(ranks.updates().size() == 1);
  ranks.next_step();
  ranks.publish_all(2);
  EXPECT_TRUE(ranks.ready()[0].begins_sum);
}

// One rank has one micro-step more than the other: at the post it is added alone.
TEST(GradTracker, WhatOneRankHasMoreIsAddedAtThePost) {
  Ranks ranks({.ranks = 2, .n_chunks = 1, .accumulate = 2});
  ranks.publish_all(1);
  EXPECT_EQ(ranks.ready().size(), 1u);
  EXPECT_TRUE(ranks.publish(1, 0, 2).ok());
  EXPECT_FALSE(ranks.tracker.anything_ready());
  ASSERT_EQ(ranks.updates().size(), 1u);
  EXPECT_TRUE(ranks.tasks[0].sum_up && ranks.tasks[0].update);
  EXPECT_FALSE(ranks.tasks[0].begins_sum);
  EXPECT_EQ(ranks.tasks[0].ranks, 2u);
}

// ---- discards ----

// Rank 0 has dropped a pass, and is at the second of those that count; rank 1 is about to drop it.
TEST(GradTracker, WhatARankWillDropIsNotSummed) {
  for (const bool noted_before : {false, true}) {
    Ranks ranks({.ranks = 2, .n_chunks = 1});
    ranks.tracker.sums_are_there();
    EXPECT_TRUE(ranks.publish(0, 0).ok());
    if (noted_before) {
      EXPECT_TRUE(ranks.publish(1, 0).ok());
    }
    ++ranks.discards[0];
    EXPECT_TRUE(ranks.publish(0, 0).ok());
    EXPECT_TRUE(ranks.request_sum(0, 0).ok());
    if (!noted_before) {
      EXPECT_TRUE(ranks.publish(1, 0).ok());
    }
    EXPECT_FALSE(ranks.tracker.anything_ready());
    ++ranks.discards[1];
    EXPECT_TRUE(ranks.publish(1, 0).ok());
    ASSERT_EQ(ranks.ready().size(), 1u);
    EXPECT_EQ(ranks.tasks[0].ranks, 3u);
    EXPECT_TRUE(ranks.tasks[0].sum_up && ranks.tasks[0].begins_sum);
    EXPECT_EQ(ranks.tasks[0].dropped, 0u) << "nobody had asked for the sum";
    EXPECT_TRUE(ranks.tracker.check_discards().ok());
  }
}

TEST(GradTracker, WhatWasSummedAndThenDroppedIsForgotten) {
  Ranks ranks({.ranks = 2, .n_chunks = 1, .accumulate = 2, .norms = true});
  for (uint32_t discards = 0; discards < 3; ++discards) {
    for (const uint32_t micro_step : {1u, 2u}) {
      ranks.publish_all(micro_step);
      ASSERT_EQ(ranks.ready().size(), 1u);
      EXPECT_EQ(ranks.tasks[0].ranks, 3u);
      EXPECT_EQ(ranks.tasks[0].begins_sum, micro_step == 1);
      EXPECT_EQ(ranks.tasks[0].squares, micro_step == 2);
    }
    for (uint32_t& mine : ranks.discards) ++mine;
  }
  EXPECT_TRUE(ranks.squares().empty());
}

// Far ahead: rank 1 joins with its second discard, not with its first.
TEST(GradTracker, ARankMayDropTwice) {
  Ranks ranks({.ranks = 2, .n_chunks = 1});
  ranks.tracker.sums_are_there();
  ranks.discards[0] = 2;
  EXPECT_TRUE(ranks.publish(0, 0).ok());
  EXPECT_TRUE(ranks.request_sum(0, 0).ok());
  for (; ranks.discards[1] < 2; ++ranks.discards[1]) {
    EXPECT_TRUE(ranks.publish(1, 0).ok());
    EXPECT_FALSE(ranks.tracker.anything_ready()) << ranks.discards[1];
  }
  EXPECT_TRUE(ranks.publish(1, 0).ok());
  ASSERT_EQ(ranks.ready().size(), 1u);
  EXPECT_EQ(ranks.tasks[0].ranks, 3u);
}

// Rank 1 runs more passes than rank 0 before both discard them.
TEST(GradTracker, WhoWaitsForASumThatWillNotBeIsTold) {
  Ranks ranks({.ranks = 2, .n_chunks = 1, .accumulate = 4});
  EXPECT_TRUE(ranks.publish(1, 0, 1).ok());
  ++ranks.discards[0];
  EXPECT_TRUE(ranks.publish(0, 0, 1).ok());
  for (const uint32_t micro_step : {1u, 2u, 3u}) {
    if (micro_step > 1) {
      EXPECT_TRUE(ranks.publish(1, 0, micro_step).ok());
    }
    ASSERT_EQ(ranks.ready().size(), 1u) << micro_step;
    EXPECT_EQ(ranks.tasks[0].dropped, 2u);
    EXPECT_FALSE(ranks.tasks[0].sum_up || ranks.tasks[0].squares || ranks.tasks[0].update);
    EXPECT_FALSE(ranks.tracker.anything_ready()) << "told once";
  }
  ++ranks.discards[1];
  EXPECT_TRUE(ranks.publish(1, 0, 1).ok());
  ASSERT_EQ(ranks.ready().size(), 1u);
  EXPECT_EQ(ranks.tasks[0].ranks, 3u);
  EXPECT_EQ(ranks.tasks[0].dropped, 0u);
}

TEST(GradTracker, WhoAsksForASumThatWillNotBeIsTold) {
  Ranks ranks({.ranks = 2, .n_chunks = 1});
  EXPECT_TRUE(ranks.publish(1, 0).ok());
  ++ranks.discards[0];
  EXPECT_TRUE(ranks.publish(0, 0).ok());
  EXPECT_FALSE(ranks.tracker.anything_ready());
  EXPECT_TRUE(ranks.request_sum(1, 0).ok());
  ASSERT_EQ(ranks.ready().size(), 1u) << "that needs no memory";
  EXPECT_EQ(ranks.tasks[0].dropped, 2u);
}

// Between elixird's look at the records and its next activity.
TEST(GradTracker, AChunkThatWasReadyWaitsOnceARankHasDroppedItsPart) {
  Ranks ranks({.ranks = 2, .n_chunks = 1, .accumulate = 2});
  ranks.publish_all(1);
  EXPECT_TRUE(ranks.tracker.anything_ready());
  ++ranks.discards[0];
  EXPECT_TRUE(ranks.publish(0, 0, 1).ok());
  ASSERT_EQ(ranks.ready().size(), 1u);
  EXPECT_FALSE(ranks.tasks[0].sum_up);
  EXPECT_EQ(ranks.tasks[0].dropped, 2u);
  ++ranks.discards[1];
  EXPECT_TRUE(ranks.publish(1, 0, 1).ok());
  ASSERT_EQ(ranks.ready().size(), 1u);
  EXPECT_EQ(ranks.tasks[0].ranks, 3u);
}

TEST(GradTracker, ARankThatDropsAloneIsFoundAtThePost) {
  Ranks ranks({.ranks = 2, .n_chunks = 1, .accumulate = 2});
  ranks.publish_all(1);
  EXPECT_EQ(ranks.ready().size(), 1u);
  EXPECT_TRUE(ranks.tracker.check_discards().ok());
  ++ranks.discards[0];
  EXPECT_TRUE(ranks.publish(0, 0, 1).ok());
  const Status status = ranks.tracker.check_discards();
  EXPECT_EQ(status.code(), Code::kProtocol);
  for (const char* const part : {"0 times, another one 1 times", "discard the same"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
  ++ranks.discards[1];  // it did the same, later
  EXPECT_TRUE(ranks.publish(1, 0, 1).ok());
  EXPECT_TRUE(ranks.tracker.check_discards().ok());
  EXPECT_EQ(ranks.ready().size(), 1u);
  EXPECT_TRUE(ranks.tasks[0].begins_sum);
}

// Nobody waits for a rank that has posted or left, whatever it had dropped before.
TEST(GradTracker, ARankThatDropsLessKeepsNoOtherWaiting) {
  for (const bool posts : {false, true}) {
    Ranks ranks({.ranks = 2, .n_chunks = 1, .accumulate = 2});
    EXPECT_TRUE(ranks.publish(1, 0, 1).ok());
    ++ranks.discards[0];
    EXPECT_TRUE(ranks.publish(0, 0, 1).ok());
    EXPECT_FALSE(ranks.ready()[0].sum_up);
    if (posts) ranks.tracker.note_posted(1);
    if (!posts) ranks.tracker.note_gone(1, 0);
    ASSERT_EQ(ranks.ready().size(), 1u);
    EXPECT_TRUE(ranks.tasks[0].sum_up);
    EXPECT_EQ(ranks.tasks[0].ranks, 1u);
    EXPECT_EQ(ranks.tracker.check_discards().code(), Code::kProtocol);
  }
}

TEST(GradTracker, NoUpdateIsMadeWithoutARankThatDropsLess) {
  Ranks ranks({.ranks = 2, .n_chunks = 1, .accumulate = 2, .immediate = true});
  EXPECT_TRUE(ranks.publish(1, 0, 1).ok());
  ++ranks.discards[0];
  for (const uint32_t micro_step : {1u, 2u}) {
    EXPECT_TRUE(ranks.publish(0, 0, micro_step).ok());
    ranks.ready();
    if (micro_step == 1) ranks.tracker.note_posted(1);
    EXPECT_EQ(ranks.tracker.anything_ready(), micro_step == 1);
    ranks.ready();
  }
  EXPECT_FALSE(ranks.tracker.partly_updated());
  EXPECT_EQ(ranks.tracker.check_discards().code(), Code::kProtocol);
}

// Without sums slots are read as they are at the post: a rank may make its one pass again.
TEST(GradTracker, OnePassMayBeDroppedByOneRankAlone) {
  Ranks ranks({.ranks = 2, .n_chunks = 1, .norms = true});
  ranks.publish_all();
  EXPECT_TRUE(ranks.ready()[0].squares);
  ++ranks.discards[0];
  EXPECT_TRUE(ranks.publish(0, 0).ok());
  EXPECT_FALSE(ranks.tracker.anything_ready());
  EXPECT_TRUE(ranks.tracker.check_discards().ok());
  ASSERT_EQ(ranks.squares().size(), 1u) << "those taken were of gradients that are gone";
  ASSERT_EQ(ranks.updates().size(), 1u);
  EXPECT_FALSE(ranks.tasks[0].of_sums);
}

TEST(GradTracker, AfterADiscardEveryChunkIsPublishedAgain) {
  Ranks ranks({.ranks = 2, .n_chunks = 2});
  ranks.publish_all();
  EXPECT_TRUE(ranks.tracker.published_all(0));
  ++ranks.discards[0];
  EXPECT_TRUE(ranks.publish(0, 1).ok());
  EXPECT_EQ(ranks.tracker.discards(0), 1u);
  EXPECT_FALSE(ranks.tracker.published_all(0));
  EXPECT_FALSE(ranks.tracker.published(0, 0));
  EXPECT_TRUE(ranks.tracker.published(0, 1));
  EXPECT_TRUE(ranks.tracker.published_all(1));
  EXPECT_TRUE(ranks.publish(0, 1).ok());
  EXPECT_FALSE(ranks.tracker.published_all(0)) << "the same once more";
  EXPECT_TRUE(ranks.publish(0, 0).ok());
  EXPECT_TRUE(ranks.tracker.published_all(0));
  ranks.discards[0] = 0;
  EXPECT_EQ(ranks.publish(0, 0).code(), Code::kProtocol) << "nothing is undone";
  ranks.next_step();
  EXPECT_EQ(ranks.tracker.discards(0), 0u);
  ranks.publish_all();
  EXPECT_TRUE(ranks.tracker.published_all(0));
}

TEST(GradTracker, WhatIsSummedIsPublishedAgainAfterADiscardAlone) {
  Ranks ranks({.ranks = 1, .n_chunks = 1, .accumulate = 2});
  ranks.publish_all(1);
  EXPECT_EQ(ranks.ready().size(), 1u);
  EXPECT_EQ(ranks.publish(0, 0, 1).code(), Code::kProtocol);
  EXPECT_TRUE(ranks.publish(0, 0, 2).ok());
}

TEST(GradTracker, ARankThatSaidGoodbyeKeepsNoOtherWaiting) {
  for (const bool immediate : {false, true}) {
    Ranks ranks({.ranks = 2, .n_chunks = 1, .accumulate = 2, .immediate = immediate});
    EXPECT_TRUE(ranks.publish(0, 0, 1).ok());
    EXPECT_FALSE(ranks.tracker.anything_ready());
    ranks.tracker.note_gone(1, 0);
    ASSERT_TRUE(ranks.tracker.anything_ready());
    EXPECT_EQ(ranks.ready()[0].ranks, 1u);
    EXPECT_TRUE(ranks.publish(0, 0, 2).ok());
    EXPECT_EQ(ranks.tracker.anything_ready(), !immediate) << "no update without rank 1";
  }
}

TEST(GradTracker, ARankThatSaidGoodbyeHasPublishedWhatItPosted) {
  Ranks ranks({.ranks = 2, .n_chunks = 1, .accumulate = 2});
  ranks.tracker.note_gone(1, 1);
  EXPECT_TRUE(ranks.publish(0, 0, 1).ok());
  EXPECT_FALSE(ranks.tracker.anything_ready()) << "its gradients are there, and were not read yet";
  EXPECT_TRUE(ranks.publish(1, 0, 1).ok());
  EXPECT_EQ(ranks.ready()[0].ranks, 3u);
  ranks.next_step();
  EXPECT_TRUE(ranks.publish(0, 0, 1).ok());
  EXPECT_TRUE(ranks.tracker.anything_ready());
}

TEST(GradTracker, ARankThatHasPostedKeepsNoOtherWaiting) {
  Ranks ranks({.ranks = 2, .n_chunks = 1, .accumulate = 4});
  ranks.publish_all(1);
  EXPECT_EQ(ranks.ready().size(), 1u);
  EXPECT_TRUE(ranks.publish(0, 0, 2).ok());
  EXPECT_FALSE(ranks.tracker.anything_ready());
  ranks.tracker.note_posted(1);
  for (uint32_t micro_step = 2; micro_step <= 4; ++micro_step) {
    if (micro_step > 2) {
      EXPECT_TRUE(ranks.publish(0, 0, micro_step).ok());
    }
    ASSERT_TRUE(ranks.tracker.anything_ready()) << "micro_step " << micro_step;
    EXPECT_EQ(ranks.ready().size(), 1u);
    EXPECT_EQ(ranks.tasks[0].ranks, 1u);
    EXPECT_FALSE(ranks.tasks[0].begins_sum);
  }
  ranks.next_step();
  ranks.publish_all(1);
  EXPECT_EQ(ranks.ready().size(), 1u);
  EXPECT_TRUE(ranks.publish(0, 0, 2).ok());
  EXPECT_FALSE(ranks.tracker.anything_ready()) << "the post was of the step before";
}

TEST(GradTracker, ImmediateUpdatesComeWithTheLastMicroStep) {
  Ranks ranks({.ranks = 2, .n_chunks = 2, .accumulate = 2, .immediate = true});
  ranks.publish_all(1);
  ASSERT_EQ(ranks.ready().size(), 2u);
  EXPECT_FALSE(ranks.tasks[0].update);
  EXPECT_FALSE(ranks.tracker.partly_updated());
  EXPECT_TRUE(ranks.publish(0, 1, 2).ok());
  EXPECT_TRUE(ranks.publish(1, 1, 2).ok());
  ASSERT_EQ(ranks.ready().size(), 1u);
  EXPECT_TRUE(ranks.tasks[0].update && ranks.tasks[0].sum_up);
  EXPECT_TRUE(ranks.tracker.partly_updated());
  ASSERT_EQ(ranks.updates().size(), 1u) << "the other chunk, with the one it had";
  EXPECT_EQ(ranks.tasks[0].chunk, 0u);
}

TEST(GradTracker, PublishingAfterAnImmediateUpdateBreaksTheRules) {
  Ranks ranks({.ranks = 1, .n_chunks = 1, .accumulate = 1, .immediate = true});
  ranks.publish_all(1);
  EXPECT_TRUE(ranks.ready()[0].update);
  const Status status = ranks.publish(0, 0, 2);
  EXPECT_EQ(status.code(), Code::kProtocol);
  EXPECT_NE(status.message().find("1 backward passes a step were declared"), std::string::npos)
      << status.message();
  EXPECT_TRUE(ranks.updates().empty());
  ranks.next_step();
  EXPECT_TRUE(ranks.publish(0, 0).ok());
}

// A second backward pass that nobody declared: the trainer asks for the sum of the first one, once
// it is about to write over it.
TEST(GradTracker, ASumThatIsAskedForLaterBeginsWithWhatIsThere) {
  Ranks ranks({.ranks = 2, .n_chunks = 2});
  ranks.tracker.sums_are_there();
  ranks.publish_all(1);
  EXPECT_FALSE(ranks.tracker.anything_ready());
  EXPECT_TRUE(ranks.request_sum(0, 1).ok());
  ASSERT_EQ(ranks.ready().size(), 1u);
  EXPECT_EQ(ranks.tasks[0].chunk, 1u);
  EXPECT_TRUE(ranks.tasks[0].sum_up && ranks.tasks[0].begins_sum && ranks.tasks[0].of_sums);
  EXPECT_EQ(ranks.tasks[0].ranks, 3u) << "of the rank that has not asked, too";
  EXPECT_TRUE(ranks.request_sum(1, 1).ok());
  EXPECT_FALSE(ranks.tracker.anything_ready()) << "its gradients are in the sum";
  EXPECT_TRUE(ranks.publish(0, 1, 2).ok());
  EXPECT_TRUE(ranks.publish(1, 1, 2).ok());
  ASSERT_EQ(ranks.ready().size(), 1u) << "from then on without being asked";
  EXPECT_TRUE(ranks.tasks[0].sum_up);
  EXPECT_FALSE(ranks.tasks[0].begins_sum);
  ASSERT_EQ(ranks.updates().size(), 2u);
  EXPECT_FALSE(ranks.tasks[0].of_sums) << "the chunk with one gradient has no sum";
  EXPECT_TRUE(ranks.tasks[1].of_sums);
  EXPECT_FALSE(ranks.tasks[1].sum_up);
  ranks.next_step();
  ranks.publish_all(1);
  EXPECT_FALSE(ranks.tracker.anything_ready()) << "that was the step before";
}

TEST(GradTracker, WhatWasTakenForItsSquaresAloneIsSummedWhenAskedFor) {
  Ranks ranks({.ranks = 2, .n_chunks = 1, .norms = true});
  ranks.tracker.sums_are_there();
  ranks.publish_all(1);
  EXPECT_FALSE(ranks.ready()[0].sum_up);
  EXPECT_TRUE(ranks.request_sum(1, 0).ok());
  ASSERT_EQ(ranks.ready().size(), 1u);
  EXPECT_TRUE(ranks.tasks[0].sum_up && ranks.tasks[0].begins_sum && ranks.tasks[0].squares);
  EXPECT_EQ(ranks.tasks[0].ranks, 3u);
}

TEST(GradTracker, NothingIsSummedBeforeThereIsMemoryForIt) {
  Ranks ranks({.ranks = 1, .n_chunks = 1});
  ranks.publish_all(1);
  EXPECT_FALSE(ranks.tracker.lacks_sums());
  EXPECT_TRUE(ranks.request_sum(0, 0).ok());
  EXPECT_TRUE(ranks.tracker.lacks_sums());
  EXPECT_FALSE(ranks.tracker.anything_ready());
  ranks.tracker.sums_are_there();
  EXPECT_FALSE(ranks.tracker.lacks_sums());
  ASSERT_EQ(ranks.ready().size(), 1u);
  EXPECT_TRUE(ranks.tasks[0].sum_up);
  // A rank that does not wait for it: the step is made without sums.
  Ranks hasty({.ranks = 1, .n_chunks = 1});
  hasty.publish_all(1);
  EXPECT_TRUE(hasty.request_sum(0, 0).ok());
  ASSERT_EQ(hasty.updates().size(), 1u);
  EXPECT_FALSE(hasty.tasks[0].sum_up || hasty.tasks[0].of_sums);
}

// ---- early updates ----

TEST(GradTracker, EarlyUpdatesGoOneAfterAnotherTheLatestFirstAsFarAsSlotsGo) {
  Ranks ranks({.ranks = 2, .n_chunks = 4, .norms = true, .early = true});
  EarlyLimits limits{.slots = 2, .at_once = 1};
  for (const uint32_t chunk : {3u, 1u, 2u}) {
    for (uint32_t rank = 0; rank < 2; ++rank) EXPECT_TRUE(ranks.publish(rank, chunk).ok());
  }
  ASSERT_EQ(ranks.ready(limits).size(), 3u);  // squares of all, an update of the last
  for (const ChunkTask& task : ranks.tasks) {
    EXPECT_TRUE(task.squares && !task.update);
    EXPECT_EQ(task.early, task.chunk == 2);
  }
  limits.slots = 1;
  EXPECT_TRUE(ranks.tracker.anything_ready(limits));
  EXPECT_FALSE(ranks.tracker.anything_ready()) << "nothing may be started";
  ASSERT_EQ(ranks.ready(limits).size(), 1u);
  EXPECT_EQ(ranks.tasks[0].chunk, 1u);
  EXPECT_TRUE(ranks.tasks[0].early && !ranks.tasks[0].squares && !ranks.tasks[0].update);
  limits.slots = 0;
  EXPECT_FALSE(ranks.tracker.anything_ready(limits)) << "the third has no slot";
  for (uint32_t chunk = 0; chunk < 4; ++chunk) {
    EXPECT_EQ(ranks.tracker.early(chunk), chunk == 1 || chunk == 2);
  }
  for (uint32_t rank = 0; rank < 2; ++rank) EXPECT_TRUE(ranks.publish(rank, 0).ok());
  ranks.squares();
  ranks.tracker.start_updates(&ranks.tasks, /*early_counts=*/true);
  ASSERT_EQ(ranks.tasks.size(), 2u) << "of those that have none";
  EXPECT_EQ(ranks.tasks[0].chunk + ranks.tasks[1].chunk, 3u);
  ranks.tracker.next_step();
  EXPECT_FALSE(ranks.tracker.anything_ready({.slots = 2, .at_once = 1}));
}

TEST(GradTracker, AnEarlyUpdateIsVoidOnceItsGradientsComeAgainAndIsMadeAgainInItsSlot) {
  Ranks ranks({.ranks = 2, .n_chunks = 2, .early = true});
  for (uint32_t rank = 0; rank < 2; ++rank) EXPECT_TRUE(ranks.publish(rank, 1).ok());
  ASSERT_EQ(ranks.ready({.slots = 1, .at_once = 1}).size(), 1u);
  EXPECT_TRUE(ranks.tracker.early(1));
  EXPECT_TRUE(ranks.publish(0, 1).ok());
  EXPECT_FALSE(ranks.tracker.early(1)) << "of gradients that are not its own any more";
  EXPECT_FALSE(ranks.tracker.anything_ready({.slots = 0, .at_once = 1})) << "of one rank alone";
  EXPECT_TRUE(ranks.publish(1, 1).ok());
  ASSERT_EQ(ranks.ready({.slots = 0, .at_once = 1}).size(), 1u) << "it has its slot";
  EXPECT_TRUE(ranks.tasks[0].early);
  EXPECT_TRUE(ranks.tracker.early(1));
  ranks.tracker.forget_early(1);
  ranks.tracker.start_updates(&ranks.tasks, /*early_counts=*/true);
  EXPECT_EQ(ranks.tasks.size(), 2u) << "it was of other hyperparameters";
}

TEST(GradTracker, EarlyUpdatesComeAfterTheLastDeclaredMicroStepAndReadTheSums) {
  Ranks ranks({.ranks = 1, .n_chunks = 1, .accumulate = 3, .early = true});
  for (uint32_t micro_step = 1; micro_step <= 3; ++micro_step) {
    ranks.publish_all(micro_step);
    ASSERT_EQ(ranks.ready({.slots = 1, .at_once = 1}).size(), 1u);
    EXPECT_TRUE(ranks.tasks[0].sum_up);
    EXPECT_EQ(ranks.tasks[0].early, micro_step == 3);
  }
  EXPECT_TRUE(ranks.tasks[0].of_sums);
  // Nobody knows which of those that were not declared is the last.
  Ranks undeclared({.ranks = 1, .n_chunks = 1, .early = true});
  undeclared.publish_all(1);
  EXPECT_TRUE(undeclared.ready({.slots = 1, .at_once = 1})[0].early);
  EXPECT_TRUE(undeclared.request_sum(0, 0).ok());
  undeclared.tracker.sums_are_there();
  ASSERT_EQ(undeclared.ready({.slots = 0, .at_once = 1}).size(), 1u);
  EXPECT_TRUE(undeclared.tasks[0].sum_up);
  EXPECT_FALSE(undeclared.tasks[0].early);
  EXPECT_FALSE(undeclared.tracker.early(0));
}

// Whatever is noted, each (step, revision) is summed at most once, in order, and never without
// being published.
TEST(GradTracker, AnyBytesAreTakenAtMostOnce) {
  std::mt19937 random(1);
  for (int times = 0; times < 200; ++times) {
    const auto kind = random() % 3;
    const Rules rules{.ranks = 1 + static_cast<uint32_t>(random() % 3),
                      .n_chunks = 4,
                      .accumulate = 1 + static_cast<uint32_t>(random() % 3),
                      .immediate = kind == 0,
                      .norms = random() % 2 == 0,
                      .early = kind == 1};
    GradTracker tracker = rules.tracker();
    std::vector<ChunkTask> tasks;
    for (int step = 0; step < 5; ++step) {
      std::vector<int> updates(rules.n_chunks);
      std::set<uint32_t> early;  // chunks with a slot
      const auto slots = static_cast<uint32_t>(random() % 5);
      const auto count = [&] {
        EXPECT_LE(tasks.size(), rules.n_chunks);
        std::set<uint32_t> chunks;
        for (const ChunkTask& task : tasks) {
          EXPECT_TRUE(chunks.insert(task.chunk).second) << "two tasks of chunk " << task.chunk;
          if (task.early) early.insert(task.chunk);
          EXPECT_LE(early.size(), slots);
          EXPECT_TRUE(!task.early || !task.update);
          updates[task.chunk] += task.update;
          EXPECT_EQ(task.ranks & ~((uint64_t{1} << rules.ranks) - 1), 0u);
        }
      };
      for (int notes = 0; notes < 100; ++notes) {
        const auto rank = static_cast<uint32_t>(random() % rules.ranks);
        const auto chunk = static_cast<uint32_t>(random() % 4);
        const uint32_t word = random() % 8 == 0 ? UINT32_MAX : static_cast<uint32_t>(random() % 6);
        (void)tracker.note(
            rank, chunk,
            {word, static_cast<uint32_t>(random() % 4), static_cast<uint32_t>(random() % 7),
             random() % 3 == 0, static_cast<uint32_t>(random() % 12) / 4});
        if (random() % 50 == 0 && tracker.lacks_sums()) tracker.sums_are_there();
        if (random() % 8 != 0) continue;
        tracker.start_ready(&tasks, {.slots = slots - static_cast<uint32_t>(early.size()),
                                     .at_once = static_cast<uint32_t>(random() % 3)});
        count();
        tracker.check_invariant();
      }
      tracker.start_squares(&tasks);
      count();
      const bool early_counts = random() % 2 == 0;
      for (uint32_t chunk = 0; early_counts && chunk < rules.n_chunks; ++chunk) {
        updates[chunk] += tracker.early(chunk);
      }
      tracker.start_updates(&tasks, early_counts);
      count();
      EXPECT_EQ(updates, std::vector<int>(rules.n_chunks, 1));
      tracker.next_step();
      EXPECT_FALSE(tracker.anything_ready());
    }
  }
}

// Three ranks: two of them wait for chunks that the others have not published, the third may still.
TEST(GradTracker, SumsAreMadeWithoutARankOnceAllOthersWait) {
  Ranks all({.ranks = 3, .n_chunks = 3, .accumulate = 2});
  GradTracker& tracker = all.tracker;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_FALSE(tracker.all_wait());
    ASSERT_TRUE(all.publish(rank, rank).ok());
    tracker.note_awaited(rank, rank + 1);
  }
  ASSERT_TRUE(tracker.all_wait());
  EXPECT_FALSE(tracker.anything_ready());
  tracker.sum_what_is_awaited();
  EXPECT_FALSE(tracker.all_wait()) << "their sums are ready";
  const std::vector<ChunkTask> tasks = all.ready();
  ASSERT_EQ(tasks.size(), 3u);
  for (const ChunkTask& task : tasks) {
    EXPECT_EQ(task.ranks, uint64_t{1} << task.chunk);
    EXPECT_TRUE(task.sum_up && task.begins_sum && !task.update);
  }
  EXPECT_FALSE(tracker.all_wait()) << "what they said is old";
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(all.publish(rank, rank, 2).ok());
    tracker.note_awaited(rank, rank + 1);
  }
  tracker.note_awaited(2, 0);
  EXPECT_FALSE(tracker.all_wait());
  tracker.note_posted(2);
  EXPECT_TRUE(tracker.all_wait()) << "who has posted brings nothing more";
  ASSERT_TRUE(all.publish(1, 0).ok());  // rank 1, of another pass than rank 0's
  EXPECT_TRUE(tracker.anything_ready()) << "chunk 0 has what may come";
  EXPECT_FALSE(tracker.all_wait()) << "rank 0's sum is ready";
  tracker.check_invariant();
}

// With immediate updates such a chunk waits for the post: how often a rank will still publish it
// nobody knows.
TEST(GradTracker, AChunkThatWasSummedWithoutARankIsUpdatedAtThePost) {
  for (const bool apart : {false, true}) {
    Ranks all({.ranks = 2, .n_chunks = 2, .accumulate = 2, .immediate = true});
    const auto publish = [&](uint32_t rank, uint32_t chunk, uint32_t micro_step) {
      ASSERT_TRUE(all.publish(rank, chunk, micro_step).ok());
    };
    for (uint32_t rank = 0; rank < 2; ++rank) publish(rank, apart ? rank : 0, 1);
    if (apart) {
      for (uint32_t rank = 0; rank < 2; ++rank) all.tracker.note_awaited(rank, rank + 1);
      ASSERT_TRUE(all.tracker.all_wait());
      all.tracker.sum_what_is_awaited();
    }
    ASSERT_EQ(all.ready().size(), apart ? 2u : 1u);
    publish(0, 0, 2);
    publish(1, 0, apart ? 1 : 2);
    const std::vector<ChunkTask>& tasks = all.ready();
    ASSERT_EQ(tasks.size(), 1u);
    EXPECT_TRUE(tasks[0].sum_up);
    EXPECT_EQ(tasks[0].update, !apart);
  }
}

// A rank that drops its gradients meanwhile is on its way to others.
TEST(GradTracker, ASumWithoutARankIsNotMadeOfWhatWasDropped) {
  Ranks all({.ranks = 2, .n_chunks = 2, .accumulate = 2});
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(all.publish(rank, rank).ok());
    all.tracker.note_awaited(rank, rank + 1);
  }
  ASSERT_TRUE(all.tracker.all_wait());
  all.tracker.sum_what_is_awaited();
  all.discards[1] = 1;
  ASSERT_TRUE(all.publish(1, 0).ok());
  all.tracker.check_invariant();
  for (const ChunkTask& task : all.ready()) {
    EXPECT_EQ(task.ranks, task.chunk == 1 ? 0b10u : 0u) << task.chunk;
    EXPECT_EQ(task.dropped, task.chunk == 0 ? 0b01u : 0u) << task.chunk;
  }
}

}  // namespace
}  // namespace elixir::daemon
