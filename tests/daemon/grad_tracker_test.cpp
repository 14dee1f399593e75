// Which gradients are taken when: without threads, memory or a trainer.

#include "daemon/grad_tracker.h"

#include <algorithm>
#include <random>
#include <set>
#include <string>

#include "tests/support/matchers.h"

namespace elixir::daemon {
namespace {

struct Rules {
  uint32_t ranks = 2, n_chunks = 1, accumulate = 1;
  bool immediate = false, norms = false, early = false;

  GradTracker tracker() const {
    return {ranks, n_chunks, {accumulate, immediate ? 1u : 0u, norms ? 1u : 0u, early ? 1u : 0u}};
  }
};

std::string say(uint64_t ranks) {
  std::string text;
  for (uint32_t rank = 0; rank < 64; ++rank) {
    if ((ranks >> rank & 1) != 0) text += fmt::format("{}{}", text.empty() ? "" : ",", rank);
  }
  return text;
}

// All that tasks do, as "0: adds 0,1 squares of sums; 1: drops 0".
std::string say(const std::vector<ChunkTask>& tasks) {
  std::string text;
  for (const ChunkTask& task : tasks) {
    text += fmt::format("{}{}:", text.empty() ? "" : "; ", task.chunk);
    if (task.dropped != 0) text += " drops " + say(task.dropped);
    if (task.sum_up) text += (task.begins_sum ? " begins " : " adds ") + say(task.ranks);
    if (task.squares) text += " squares";
    if (task.update) text += " update";
    if (task.early) text += " early";
    const bool reads = task.squares || task.update || task.early;
    if (reads && task.of_sums) text += " of sums";
  }
  return text;
}

// Ranks that publish as trainers do, and what elixird does then.
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

  Status try_to_publish(uint32_t rank, uint32_t chunk, uint32_t micro_step = 1) {
    const uint32_t revision = ++revisions[chunk * rules.ranks + rank];
    return tracker.note(
        rank, chunk, {tracker.step(), micro_step, revision, rules.accumulate > 1, discards[rank]});
  }
  void publish(uint32_t rank, uint32_t chunk, uint32_t micro_step = 1) {
    must(try_to_publish(rank, chunk, micro_step));
  }
  void publish_all(uint32_t micro_step = 1) {
    for (uint32_t chunk = 0; chunk < rules.n_chunks; ++chunk) {
      for (uint32_t rank = 0; rank < rules.ranks; ++rank) publish(rank, chunk, micro_step);
    }
  }
  // What was published last is to be summed.
  void request_sum(uint32_t rank, uint32_t chunk) {
    Publication last = tracker.noted(rank, chunk);
    last.to_sum = true;
    EXPECT_TRUE(tracker.note(rank, chunk, last).ok());
  }
  // "": nothing is ready.
  std::string ready(const EarlyLimits& early = {}) {
    const bool any = tracker.anything_ready(early);
    tracker.start_ready(&tasks, early);
    EXPECT_EQ(!tasks.empty(), any);
    return say(tasks);
  }
  std::string ready_after(uint32_t micro_step, const EarlyLimits& early = {}) {
    publish_all(micro_step);
    return ready(early);
  }
  std::string squares() {
    tracker.start_squares(&tasks);
    return say(tasks);
  }
  std::string updates(bool early_counts = false) {
    tracker.start_updates(&tasks, early_counts);
    return say(tasks);
  }
  void next_step() {
    updates();
    tracker.next_step();
  }
};

// As many as there are bits in a word.
TEST(GradTracker, EachOf64RanksCounts) {
  Ranks all({.ranks = 64, .accumulate = 2});
  for (const char* const what : {"0: begins 0,1,2,", "0: adds 0,1,2,"}) {
    const uint32_t micro_step = all.revisions[0] + 1;
    for (uint32_t rank = 0; rank < 63; ++rank) {
      all.publish(rank, 0, micro_step);
      EXPECT_EQ(all.ready(), "") << rank;
    }
    all.publish(63, 0, micro_step);
    const std::string ready = all.ready();
    EXPECT_TRUE(ready.starts_with(what)) << ready;
    EXPECT_EQ(all.tasks[0].ranks, ~uint64_t{0});
  }
  for (uint32_t rank = 0; rank < 64; ++rank) all.tracker.note_posted(rank);
  all.next_step();
  EXPECT_EQ(all.tracker.step(), 2u);
}

TEST(GradTracker, NothingIsEarlyUnlessTheJobWantsIt) {
  Ranks ranks({.n_chunks = 3});
  EXPECT_EQ(ranks.ready_after(1), "");
  EXPECT_EQ(ranks.updates(), "0: update; 1: update; 2: update");
  EXPECT_EQ(ranks.updates(), "") << "each once";
}

TEST(GradTracker, AChunkIsReadyOnceAllRanksHavePublishedIt) {
  Ranks ranks({.ranks = 3, .n_chunks = 2, .norms = true});
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ranks.ready(), "");
    ranks.publish(rank, 1);
  }
  EXPECT_EQ(ranks.ready(), "1: squares");
  EXPECT_EQ(ranks.ready(), "");
}

TEST(GradTracker, WhatWasNotedTwiceCountsOnce) {
  Ranks ranks({.ranks = 1, .norms = true});
  EXPECT_EQ(ranks.ready_after(1), "0: squares");
  // The doorbell once more, an older step, and a step whose revision is not there yet.
  for (const Publication& other : {Publication{1, 1, 1}, {0, 1, 2}, {2, 1, 2}}) {
    EXPECT_TRUE(ranks.tracker.note(0, 0, other).ok());
  }
  EXPECT_EQ(ranks.ready(), "");
  EXPECT_EQ(ranks.squares(), "");
  ranks.next_step();
  EXPECT_TRUE(ranks.tracker.note(0, 0, {2, 1, 1}).ok()) << "about to publish";
  EXPECT_EQ(ranks.ready(), "");
  EXPECT_TRUE(ranks.tracker.note(0, 0, {2, 1, 2}).ok());
  EXPECT_EQ(ranks.ready(), "0: squares");
}

TEST(GradTracker, SquaresOfWhatWasPublishedAgainAreTakenAnew) {
  Ranks ranks({.n_chunks = 2, .norms = true});
  EXPECT_EQ(ranks.ready_after(1), "0: squares; 1: squares");
  ranks.publish(0, 1);
  EXPECT_EQ(ranks.ready(), "") << "the other rank has not";
  EXPECT_EQ(ranks.squares(), "1: squares");
  EXPECT_EQ(ranks.squares(), "");
  EXPECT_EQ(ranks.updates(), "0: update; 1: update");
}

TEST(GradTracker, AtThePostSquaresOfAllChunksAreThere) {
  Ranks ranks({.ranks = 1, .n_chunks = 3});  // norms not announced: all at the post
  ranks.publish_all();
  EXPECT_EQ(ranks.squares(), "0: squares; 1: squares; 2: squares");
  EXPECT_EQ(ranks.squares(), "");
}

TEST(GradTracker, MicroStepsAreSummedAndTheLastOneSquared) {
  constexpr uint32_t kDiscard = 0;  // by all ranks
  struct Taken {
    uint32_t micro_step;
    const char* what;
  };
  constexpr Taken kBegun{1, "0: begins 0,1"}, kComplete{2, "0: adds 0,1 squares of sums"};
  const struct {
    const char* course;
    std::vector<Taken> taken;
    const char* squares_at_the_post = "";
  } courses[] = {
      {"as many as declared", {kBegun, kComplete}},
      {"fewer", {kBegun}, "0: squares of sums"},
      {"more", {kBegun, kComplete, {3, kComplete.what}, {4, kComplete.what}}},
      // A chunk that no backward pass before has touched.
      {"the second alone", {{2, "0: begins 0,1 squares of sums"}}},
      {"dropped", {kBegun, {kDiscard, ""}, kBegun, kComplete}},
      {"dropped sums", {kBegun, kComplete, {kDiscard, ""}, kBegun, kComplete}},
      // Squares that were taken are of gradients that are gone.
      {"dropped, and then fewer",
       {kBegun, kComplete, {kDiscard, ""}, kBegun},
       "0: squares of sums"},
  };
  Ranks ranks({.accumulate = 2, .norms = true});
  for (const auto& course : courses) {
    SCOPED_TRACE(course.course);
    std::fill(ranks.discards.begin(), ranks.discards.end(), 0);
    for (const Taken& taken : course.taken) {
      if (taken.micro_step == kDiscard) {
        for (uint32_t& mine : ranks.discards) ++mine;
      } else {
        EXPECT_EQ(ranks.ready_after(taken.micro_step), taken.what);
      }
    }
    EXPECT_EQ(ranks.squares(), course.squares_at_the_post);
    EXPECT_EQ(ranks.updates(), "0: update of sums");
    ranks.tracker.next_step();  // whose sums begin anew
  }
}

// One rank has one micro-step more than the other: at the post it is added alone.
TEST(GradTracker, WhatOneRankHasMoreIsAddedAtThePost) {
  Ranks ranks({.accumulate = 2});
  EXPECT_EQ(ranks.ready_after(1), "0: begins 0,1");
  ranks.publish(1, 0, 2);
  EXPECT_EQ(ranks.ready(), "");
  EXPECT_EQ(ranks.updates(), "0: adds 1 update of sums");
}

// ---- discards ----

// Rank 0 has dropped a pass, and is at the second of those that count; rank 1 is about to drop it.
TEST(GradTracker, WhatARankWillDropIsNotSummed) {
  for (const bool noted_before : {false, true}) {
    Ranks ranks({});
    ranks.tracker.sums_are_there();
    ranks.publish(0, 0);
    if (noted_before) ranks.publish(1, 0);
    ++ranks.discards[0];
    ranks.publish(0, 0);
    ranks.request_sum(0, 0);
    if (!noted_before) ranks.publish(1, 0);
    EXPECT_EQ(ranks.ready(), "");
    ++ranks.discards[1];
    ranks.publish(1, 0);
    EXPECT_EQ(ranks.ready(), "0: begins 0,1") << "nobody had asked for a sum that is dropped";
    EXPECT_TRUE(ranks.tracker.check_discards().ok());
  }
}

// Far ahead: rank 1 joins with its second discard, not with its first.
TEST(GradTracker, ARankMayDropTwice) {
  Ranks ranks({});
  ranks.tracker.sums_are_there();
  ranks.discards[0] = 2;
  ranks.publish(0, 0);
  ranks.request_sum(0, 0);
  for (; ranks.discards[1] < 2; ++ranks.discards[1]) {
    ranks.publish(1, 0);
    EXPECT_EQ(ranks.ready(), "") << ranks.discards[1];
  }
  ranks.publish(1, 0);
  EXPECT_EQ(ranks.ready(), "0: begins 0,1");
}

// Rank 1 runs more passes than rank 0 before both discard them.
TEST(GradTracker, WhoWaitsForASumThatWillNotBeIsTold) {
  Ranks ranks({.accumulate = 4});
  ranks.publish(1, 0, 1);
  ++ranks.discards[0];
  ranks.publish(0, 0, 1);
  for (const uint32_t micro_step : {1u, 2u, 3u}) {
    if (micro_step > 1) ranks.publish(1, 0, micro_step);
    EXPECT_EQ(ranks.ready(), "0: drops 1") << micro_step;
    EXPECT_EQ(ranks.ready(), "") << "told once";
  }
  ++ranks.discards[1];
  ranks.publish(1, 0, 1);
  EXPECT_EQ(ranks.ready(), "0: begins 0,1");
}

TEST(GradTracker, WhoAsksForASumThatWillNotBeIsTold) {
  Ranks ranks({});
  ranks.publish(1, 0);
  ++ranks.discards[0];
  ranks.publish(0, 0);
  EXPECT_EQ(ranks.ready(), "");
  ranks.request_sum(1, 0);
  EXPECT_EQ(ranks.ready(), "0: drops 1") << "that needs no memory";
}

// Between elixird's look at the records and its next activity.
TEST(GradTracker, AChunkThatWasReadyWaitsOnceARankHasDroppedItsPart) {
  Ranks ranks({.accumulate = 2});
  ranks.publish_all(1);
  EXPECT_TRUE(ranks.tracker.anything_ready());
  ++ranks.discards[0];
  ranks.publish(0, 0, 1);
  EXPECT_EQ(ranks.ready(), "0: drops 1");
  ++ranks.discards[1];
  ranks.publish(1, 0, 1);
  EXPECT_EQ(ranks.ready(), "0: begins 0,1");
}

TEST(GradTracker, ARankThatDropsAloneIsFoundAtThePost) {
  Ranks ranks({.accumulate = 2});
  EXPECT_EQ(ranks.ready_after(1), "0: begins 0,1");
  EXPECT_TRUE(ranks.tracker.check_discards().ok());
  ++ranks.discards[0];
  ranks.publish(0, 0, 1);
  expect_refused(ranks.tracker.check_discards(), Code::kProtocol,
                 {"0 times and another one 1 times"});
  expect_refused(ranks.tracker.check_discards(), Code::kProtocol, {"discard the same"});
  ++ranks.discards[1];  // it did the same, later
  ranks.publish(1, 0, 1);
  EXPECT_TRUE(ranks.tracker.check_discards().ok());
  EXPECT_EQ(ranks.ready(), "0: begins 0,1");
}

// Nobody waits for a rank that has posted or left, whatever it had dropped before.
TEST(GradTracker, ARankThatDropsLessKeepsNoOtherWaiting) {
  for (const bool posts : {false, true}) {
    Ranks ranks({.accumulate = 2});
    ranks.publish(1, 0, 1);
    ++ranks.discards[0];
    ranks.publish(0, 0, 1);
    EXPECT_EQ(ranks.ready(), "0: drops 1");
    if (posts) ranks.tracker.note_posted(1);
    if (!posts) ranks.tracker.note_gone(1, 0);
    EXPECT_EQ(ranks.ready(), "0: begins 0");
    expect_refused(ranks.tracker.check_discards(), Code::kProtocol, {});
  }
}

TEST(GradTracker, NoUpdateIsMadeWithoutARankThatDropsLess) {
  Ranks ranks({.accumulate = 2, .immediate = true});
  ranks.publish(1, 0, 1);
  ++ranks.discards[0];
  ranks.publish(0, 0, 1);
  EXPECT_EQ(ranks.ready(), "0: drops 1");
  ranks.tracker.note_posted(1);
  EXPECT_EQ(ranks.ready(), "0: begins 0");
  ranks.publish(0, 0, 2);
  EXPECT_EQ(ranks.ready(), "");
  EXPECT_FALSE(ranks.tracker.partly_updated());
  expect_refused(ranks.tracker.check_discards(), Code::kProtocol, {});
}

// Without sums slots are read as they are at the post: a rank may make its one pass again.
TEST(GradTracker, OnePassMayBeDroppedByOneRankAlone) {
  Ranks ranks({.norms = true});
  EXPECT_EQ(ranks.ready_after(1), "0: squares");
  ++ranks.discards[0];
  ranks.publish(0, 0);
  EXPECT_EQ(ranks.ready(), "");
  EXPECT_TRUE(ranks.tracker.check_discards().ok());
  EXPECT_EQ(ranks.squares(), "0: squares") << "those taken were of gradients that are gone";
  EXPECT_EQ(ranks.updates(), "0: update");
}

TEST(GradTracker, AfterADiscardEveryChunkIsPublishedAgain) {
  Ranks ranks({.n_chunks = 2});
  const GradTracker& tracker = ranks.tracker;
  ranks.publish_all();
  EXPECT_TRUE(tracker.published_all(0));
  ++ranks.discards[0];
  ranks.publish(0, 1);
  EXPECT_EQ(tracker.discards(0), 1u);
  EXPECT_FALSE(tracker.published_all(0));
  EXPECT_FALSE(tracker.published(0, 0));
  EXPECT_TRUE(tracker.published(0, 1));
  EXPECT_TRUE(tracker.published_all(1));
  ranks.publish(0, 1);
  EXPECT_FALSE(tracker.published_all(0)) << "the same once more";
  ranks.publish(0, 0);
  EXPECT_TRUE(tracker.published_all(0));
  ranks.discards[0] = 0;
  expect_refused(ranks.try_to_publish(0, 0), Code::kProtocol, {"after 1 discards, then 0"});
  ranks.next_step();
  EXPECT_EQ(tracker.discards(0), 0u);
  ranks.publish_all();
  EXPECT_TRUE(tracker.published_all(0));
}

TEST(GradTracker, WhatIsSummedIsPublishedAgainAfterADiscardAlone) {
  Ranks ranks({.ranks = 1, .accumulate = 2});
  EXPECT_EQ(ranks.ready_after(1), "0: begins 0");
  expect_refused(ranks.try_to_publish(0, 0, 1), Code::kProtocol, {"and nothing was discarded"});
  ranks.publish(0, 0, 2);
}

TEST(GradTracker, ARankThatSaidGoodbyeKeepsNoOtherWaiting) {
  for (const bool immediate : {false, true}) {
    Ranks ranks({.accumulate = 2, .immediate = immediate});
    ranks.publish(0, 0, 1);
    EXPECT_EQ(ranks.ready(), "");
    ranks.tracker.note_gone(1, 0);
    EXPECT_EQ(ranks.ready(), "0: begins 0");
    ranks.publish(0, 0, 2);
    EXPECT_EQ(ranks.ready(), immediate ? "" : "0: adds 0") << "no update without rank 1";
  }
}

TEST(GradTracker, ARankThatSaidGoodbyeHasPublishedWhatItPosted) {
  Ranks ranks({.accumulate = 2});
  ranks.tracker.note_gone(1, 1);
  ranks.publish(0, 0, 1);
  EXPECT_EQ(ranks.ready(), "") << "its gradients are there, and were not read yet";
  ranks.publish(1, 0, 1);
  EXPECT_EQ(ranks.ready(), "0: begins 0,1");
  ranks.next_step();
  ranks.publish(0, 0, 1);
  EXPECT_EQ(ranks.ready(), "0: begins 0");
}

TEST(GradTracker, ARankThatHasPostedKeepsNoOtherWaiting) {
  Ranks ranks({.accumulate = 4});
  EXPECT_EQ(ranks.ready_after(1), "0: begins 0,1");
  ranks.publish(0, 0, 2);
  EXPECT_EQ(ranks.ready(), "");
  ranks.tracker.note_posted(1);
  for (uint32_t micro_step = 2; micro_step <= 4; ++micro_step) {
    if (micro_step > 2) ranks.publish(0, 0, micro_step);
    EXPECT_EQ(ranks.ready(), "0: adds 0") << "micro_step " << micro_step;
  }
  ranks.next_step();
  EXPECT_EQ(ranks.ready_after(1), "0: begins 0,1");
  ranks.publish(0, 0, 2);
  EXPECT_EQ(ranks.ready(), "") << "the post was of the step before";
}

TEST(GradTracker, ImmediateUpdatesComeWithTheLastMicroStep) {
  Ranks ranks({.n_chunks = 2, .accumulate = 2, .immediate = true});
  EXPECT_EQ(ranks.ready_after(1), "0: begins 0,1; 1: begins 0,1");
  EXPECT_FALSE(ranks.tracker.partly_updated());
  for (uint32_t rank = 0; rank < 2; ++rank) ranks.publish(rank, 1, 2);
  EXPECT_EQ(ranks.ready(), "1: adds 0,1 update of sums");
  EXPECT_TRUE(ranks.tracker.partly_updated());
  EXPECT_EQ(ranks.updates(), "0: update of sums") << "the other chunk, with the one it had";
}

TEST(GradTracker, PublishingAfterAnImmediateUpdateBreaksTheRules) {
  Ranks ranks({.ranks = 1, .immediate = true});
  EXPECT_EQ(ranks.ready_after(1), "0: update");
  expect_refused(ranks.try_to_publish(0, 0, 2), Code::kProtocol,
                 {"1 backward passes a step were declared"});
  EXPECT_EQ(ranks.updates(), "");
  ranks.next_step();
  ranks.publish(0, 0);
}

// A second backward pass that nobody declared: the trainer asks for the sum of the first one, once
// it is about to write over it.
TEST(GradTracker, ASumThatIsAskedForLaterBeginsWithWhatIsThere) {
  Ranks ranks({.n_chunks = 2});
  ranks.tracker.sums_are_there();
  EXPECT_EQ(ranks.ready_after(1), "");
  ranks.request_sum(0, 1);
  EXPECT_EQ(ranks.ready(), "1: begins 0,1") << "of the rank that has not asked, too";
  ranks.request_sum(1, 1);
  EXPECT_EQ(ranks.ready(), "") << "its gradients are in the sum";
  for (uint32_t rank = 0; rank < 2; ++rank) ranks.publish(rank, 1, 2);
  EXPECT_EQ(ranks.ready(), "1: adds 0,1") << "from then on without being asked";
  EXPECT_EQ(ranks.updates(), "0: update; 1: update of sums");
  ranks.next_step();
  EXPECT_EQ(ranks.ready_after(1), "") << "that was the step before";
}

TEST(GradTracker, WhatWasTakenForItsSquaresAloneIsSummedWhenAskedFor) {
  Ranks ranks({.norms = true});
  ranks.tracker.sums_are_there();
  EXPECT_EQ(ranks.ready_after(1), "0: squares");
  ranks.request_sum(1, 0);
  EXPECT_EQ(ranks.ready(), "0: begins 0,1 squares of sums");
}

TEST(GradTracker, NothingIsSummedBeforeThereIsMemoryForIt) {
  Ranks ranks({.ranks = 1});
  ranks.publish_all(1);
  EXPECT_FALSE(ranks.tracker.lacks_sums());
  ranks.request_sum(0, 0);
  EXPECT_TRUE(ranks.tracker.lacks_sums());
  EXPECT_EQ(ranks.ready(), "");
  ranks.tracker.sums_are_there();
  EXPECT_FALSE(ranks.tracker.lacks_sums());
  EXPECT_EQ(ranks.ready(), "0: begins 0");
  // A rank that does not wait for it: the step is made without sums.
  Ranks hasty({.ranks = 1});
  hasty.publish_all(1);
  hasty.request_sum(0, 0);
  EXPECT_EQ(hasty.updates(), "0: update");
}

// ---- early updates ----

TEST(GradTracker, EarlyUpdatesGoOneAfterAnotherTheLatestFirstAsFarAsSlotsGo) {
  Ranks ranks({.n_chunks = 4, .norms = true, .early = true});
  const auto publish = [&](uint32_t chunk) {
    for (uint32_t rank = 0; rank < 2; ++rank) ranks.publish(rank, chunk);
  };
  for (const uint32_t chunk : {3u, 1u, 2u}) publish(chunk);
  EXPECT_EQ(ranks.ready({.slots = 2, .at_once = 1}), "3: squares; 1: squares; 2: squares early");
  EXPECT_FALSE(ranks.tracker.anything_ready()) << "nothing may be started";
  EXPECT_EQ(ranks.ready({.slots = 1, .at_once = 1}), "1: early");
  EXPECT_EQ(ranks.ready({.slots = 0, .at_once = 1}), "") << "the third has no slot";
  for (uint32_t chunk = 0; chunk < 4; ++chunk) {
    EXPECT_EQ(ranks.tracker.early(chunk), chunk == 1 || chunk == 2);
  }
  publish(0);
  EXPECT_EQ(ranks.squares(), "0: squares");
  EXPECT_EQ(ranks.updates(/*early_counts=*/true), "0: update; 3: update") << "that have none";
  ranks.tracker.next_step();
  EXPECT_EQ(ranks.ready({.slots = 2, .at_once = 1}), "");
}

// A chunk whose gradients come again leaves the queue: it is the last one once it is complete.
TEST(GradTracker, AChunkThatIsPublishedAgainIsUpdatedEarlyAsTheOneThatWasCompletedLast) {
  Ranks ranks({.n_chunks = 4, .early = true});
  const EarlyLimits one{.slots = 4, .at_once = 1};
  for (uint32_t chunk = 0; chunk < 4; ++chunk) {
    for (uint32_t rank = 0; rank < 2; ++rank) ranks.publish(rank, chunk);
  }
  EXPECT_EQ(ranks.ready(one), "0:; 1:; 2:; 3: early");
  ranks.publish(0, 0);
  ranks.publish(0, 2);
  EXPECT_EQ(ranks.ready(one), "1: early") << "the others' gradients are about to change";
  EXPECT_FALSE(ranks.tracker.anything_ready(one));
  ranks.publish(1, 2);
  ranks.publish(1, 0);
  EXPECT_EQ(ranks.ready(one), "2:; 0: early");
  EXPECT_EQ(ranks.ready(one), "2: early");
}

TEST(GradTracker, AnEarlyUpdateIsVoidOnceItsGradientsComeAgainAndIsMadeAgainInItsSlot) {
  Ranks ranks({.n_chunks = 2, .early = true});
  const EarlyLimits no_slot{.slots = 0, .at_once = 1};
  for (uint32_t rank = 0; rank < 2; ++rank) ranks.publish(rank, 1);
  EXPECT_EQ(ranks.ready({.slots = 1, .at_once = 1}), "1: early");
  EXPECT_TRUE(ranks.tracker.early(1));
  ranks.publish(0, 1);
  EXPECT_FALSE(ranks.tracker.early(1)) << "of gradients that are not its own any more";
  EXPECT_EQ(ranks.ready(no_slot), "") << "of one rank alone";
  ranks.publish(1, 1);
  EXPECT_EQ(ranks.ready(no_slot), "1: early") << "it has its slot";
  EXPECT_TRUE(ranks.tracker.early(1));
  ranks.tracker.forget_early(1);
  EXPECT_EQ(ranks.updates(/*early_counts=*/true), "0: update; 1: update")
      << "it was of other hyperparameters";
}

TEST(GradTracker, EarlyUpdatesComeAfterTheLastDeclaredMicroStepAndReadTheSums) {
  const EarlyLimits one{.slots = 1, .at_once = 1};
  Ranks ranks({.ranks = 1, .accumulate = 3, .early = true});
  EXPECT_EQ(ranks.ready_after(1, one), "0: begins 0");
  EXPECT_EQ(ranks.ready_after(2, one), "0: adds 0");
  EXPECT_EQ(ranks.ready_after(3, one), "0: adds 0 early of sums");
  // Nobody knows which of those that were not declared is the last.
  Ranks undeclared({.ranks = 1, .early = true});
  EXPECT_EQ(undeclared.ready_after(1, one), "0: early");
  undeclared.request_sum(0, 0);
  undeclared.tracker.sums_are_there();
  EXPECT_EQ(undeclared.ready({.slots = 0, .at_once = 1}), "0: begins 0");
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
  const auto publish_and_wait = [&](uint32_t rank, uint32_t micro_step) {
    all.publish(rank, rank, micro_step);
    tracker.note_awaited(rank, rank + 1);
  };
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_FALSE(tracker.all_wait());
    publish_and_wait(rank, 1);
  }
  ASSERT_TRUE(tracker.all_wait());
  EXPECT_EQ(all.ready(), "");
  tracker.sum_what_is_awaited();
  EXPECT_FALSE(tracker.all_wait()) << "their sums are ready";
  EXPECT_EQ(all.ready(), "0: begins 0; 1: begins 1; 2: begins 2");
  EXPECT_FALSE(tracker.all_wait()) << "what they said is old";
  for (uint32_t rank = 0; rank < 2; ++rank) publish_and_wait(rank, 2);
  tracker.note_awaited(2, 0);
  EXPECT_FALSE(tracker.all_wait());
  tracker.note_posted(2);
  EXPECT_TRUE(tracker.all_wait()) << "who has posted brings nothing more";
  all.publish(1, 0);  // rank 1, of another pass than rank 0's
  EXPECT_TRUE(tracker.anything_ready()) << "chunk 0 has what may come";
  EXPECT_FALSE(tracker.all_wait()) << "rank 0's sum is ready";
  tracker.check_invariant();
}

// With immediate updates such a chunk waits for the post: how often a rank will still publish it
// nobody knows.
TEST(GradTracker, AChunkThatWasSummedWithoutARankIsUpdatedAtThePost) {
  Ranks together({.n_chunks = 2, .accumulate = 2, .immediate = true}), apart(together.rules);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    together.publish(rank, 0, 1);
    apart.publish(rank, rank, 1);
    apart.tracker.note_awaited(rank, rank + 1);
  }
  ASSERT_TRUE(apart.tracker.all_wait());
  apart.tracker.sum_what_is_awaited();
  EXPECT_EQ(together.ready(), "0: begins 0,1");
  EXPECT_EQ(apart.ready(), "0: begins 0; 1: begins 1");
  for (uint32_t rank = 0; rank < 2; ++rank) {
    together.publish(rank, 0, 2);
    apart.publish(rank, 0, 2 - rank);
  }
  EXPECT_EQ(together.ready(), "0: adds 0,1 update of sums");
  EXPECT_EQ(apart.ready(), "0: adds 0,1");
}

// A rank that drops its gradients meanwhile is on its way to others.
TEST(GradTracker, ASumWithoutARankIsNotMadeOfWhatWasDropped) {
  Ranks all({.n_chunks = 2, .accumulate = 2});
  for (uint32_t rank = 0; rank < 2; ++rank) {
    all.publish(rank, rank);
    all.tracker.note_awaited(rank, rank + 1);
  }
  ASSERT_TRUE(all.tracker.all_wait());
  all.tracker.sum_what_is_awaited();
  all.discards[1] = 1;
  all.publish(1, 0);
  all.tracker.check_invariant();
  EXPECT_EQ(all.ready(), "0: drops 0; 1: begins 1");
}

}  // namespace
}  // namespace elixir::daemon
