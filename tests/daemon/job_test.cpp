// One job in process: its verbs are called by hand, its ranks' shared memory is written by hand,
// and its work is done when a test says so, so that every order of events can be had. Here: how its
// ranks and their memory come. (job_steps_test, job_sums_test, job_end_test: what becomes of them.)

#include "daemon/job.h"

#include "base/clock.h"
#include "daemon/waits.h"
#include "tests/daemon/job_fixture.h"
#include "tests/support/outcomes.h"

namespace elixir::daemon {
namespace {

using namespace testing;

// ---- ranks come ----

TEST(Job, EveryRankHasOnePlace) {
  InProcessJob world({});
  world.claim(0);
  Session again;
  EXPECT_EQ(world.job.claim(std::move(again)).status().code(), Code::kInvalidArgument);
  Session elsewhere;  // rank 0, in another place
  elsewhere.local_rank = 1;
  const Result<Session*> claimed = world.job.claim(std::move(elsewhere));
  EXPECT_NE(claimed.status().message().find("local rank 0 and 1"), std::string::npos);
  EXPECT_EQ(world.job.machine().missing_ranks(), std::vector<uint32_t>{1});
}

TEST(Job, RanksAreAnsweredWhenTheLastLoadIsTaken) {
  StartedJob world({});
  EXPECT_EQ(world.ports.replies, (std::vector<std::pair<uint32_t, uint64_t>>{{0, 70}, {1, 71}}));
  for (uint32_t chunk = 0; chunk < 3; ++chunk) {
    EXPECT_EQ(world.rank(0).memory->chunk_record(chunk).loads_taken.load(), 1u);
  }
  EXPECT_TRUE(world.equals(Reference(world.model)));
  world.await_ready(1, 99);  // it is ready already
  EXPECT_EQ(world.ports.replies.back().second, 99u);
}

TEST(Job, RanksMeetWhereAllAsk) {
  StartedJob world({});
  const size_t before = world.ports.replies.size();
  world.await_ready(1, 99, /*all_ranks=*/true);
  EXPECT_EQ(world.ports.replies.size(), before);
  world.await_ready(0, 98, /*all_ranks=*/true);
  ASSERT_EQ(world.ports.replies.size(), before + 2);
  world.await_ready(1, 100, /*all_ranks=*/true);
  EXPECT_EQ(world.ports.replies.size(), before + 2);
  // Who waits for one that says goodbye is told.
  world.job.detach(world.rank(0));
  expect_told(world.ports, 1, Code::kPeerLost, "waits for all ranks");
}

TEST(Job, AStepOfAnotherRankEndsTheWaitForItsCall) {
  StartedJob world({});
  world.await_ready(1, 99, /*all_ranks=*/true);
  world.write_grads(0, 1);
  world.post(0, 1);
  expect_told(world.ports, 1, Code::kProtocol, "rank 0 posted step 1 while rank 1");
}

// What status and the log say: the rank that has posted waits for the one that has not.
TEST(Job, SaysWhichRankWaitsForWhat) {
  StartedJob world({});
  EXPECT_TRUE(waits_of(world.job).empty());
  world.write_grads(0, 1);
  world.post(0, 1);
  std::vector<RankWait> waits = waits_of(world.job);
  ASSERT_EQ(waits.size(), 1u);
  EXPECT_EQ(waits[0].rank, 0u);
  EXPECT_EQ(waits[0].for_what, "step 1 of rank 1");
  EXPECT_GT(waits[0].since_ns, 0);
  world.write_grads(1, 1);
  world.post(1, 1);
  world.run_workers();
  EXPECT_TRUE(waits_of(world.job).empty());
  shm::AwaitReady call{};
  call.all_ranks = 1;
  world.job.await_ready(world.rank(1), call);
  waits = waits_of(world.job);
  ASSERT_EQ(waits.size(), 1u);
  EXPECT_EQ(waits[0].rank, 1u);
  EXPECT_EQ(waits[0].for_what, "rank 0 in the same call");
}

shm::SaidWait said(shm::WaitsFor what, uint32_t rank_after, int64_t since_ns) {
  return {static_cast<uint32_t>(what), rank_after, static_cast<uint32_t>(since_ns / 1'000'000'000)};
}

// What elixird cannot see, ranks say themselves.
TEST(Job, SaysWhatARankSaysThatItWaitsFor) {
  StartedJob world({.model = make_model(ComputeType::kFp32, 3, 3, 1024)});
  const auto text = [&] {
    const std::vector<RankWait> waits = waits_of(world.job);
    return waits.empty() ? "" : fmt::format("{}: {}", waits[0].rank, waits[0].for_what);
  };
  const int64_t now_ns = monotonic_ns();
  auto& word = world.header(0).said_wait;
  word.store(said(shm::WaitsFor::kCollective, 3, now_ns - 5'000'000'000));
  EXPECT_EQ(text(), "0: rank 2 in a collective");
  const int64_t since_ns = waits_of(world.job)[0].since_ns;
  EXPECT_LE(std::abs(since_ns - (now_ns - 5'000'000'000)), 1'000'000'000);
  word.store(said(shm::WaitsFor::kBuffers, 2, now_ns));
  EXPECT_EQ(text(), "0: buffers with rank 1");
  // For whom a collective of a device waits nobody knows: for a rank that does not wait itself.
  word.store(said(shm::WaitsFor::kCollective, 0, now_ns));
  EXPECT_EQ(text(), "0: ranks 1, 2 in a collective");
  world.header(2).said_wait.store(said(shm::WaitsFor::kCollective, 0, now_ns));
  EXPECT_EQ(text(), "0: rank 1 in a collective");
}

TEST(Job, SaysWhoseGradientsARankWaitsForInABackwardPass) {
  StartedJob world({.model = make_model(ComputeType::kFp32, 3, 3, 1024), .accumulate = 2});
  for (const uint32_t rank : {0, 2}) ASSERT_TRUE(world.publish_chunk(rank, 0, 1).ok());
  world.header(0).awaited_sum.store(1);
  world.header(0).said_wait.store(said(shm::WaitsFor::kSum, 0, monotonic_ns()));
  std::vector<RankWait> waits = waits_of(world.job);
  ASSERT_EQ(waits.size(), 1u);
  EXPECT_EQ(waits[0].for_what, "gradients of rank 1 in a backward pass");
  ASSERT_TRUE(world.publish_chunk(1, 0, 1).ok());
  EXPECT_TRUE(waits_of(world.job).empty()) << "elixird is at it";
}

// Trainers can write anything there.
TEST(Job, ShowsNoWaitThatCannotBe) {
  StartedJob world({.accumulate = 2});
  const int64_t now_ns = monotonic_ns();
  for (const uint32_t what : {0, 5, 255}) {
    world.header(0).said_wait.store({what, 2, 1});
    EXPECT_TRUE(waits_of(world.job).empty()) << what;
  }
  for (const uint32_t rank_after : {1u, 3u, (1u << 24) - 1}) {  // itself, and none of the job
    world.header(0).said_wait.store(said(shm::WaitsFor::kCollective, rank_after, now_ns));
    EXPECT_TRUE(waits_of(world.job).empty()) << rank_after;
  }
  for (const shm::WaitsFor what : {shm::WaitsFor::kSum, shm::WaitsFor::kSwing}) {
    for (const uint32_t awaited : {0u, 1000u, UINT32_MAX}) {
      world.header(0).awaited_sum.store(awaited);
      world.header(0).said_wait.store(said(what, 0, now_ns));
      EXPECT_TRUE(waits_of(world.job).empty()) << awaited;
    }
  }
  world.header(0).said_wait.store({static_cast<uint32_t>(shm::WaitsFor::kBuffers), 2, UINT32_MAX});
  const std::vector<RankWait> waits = waits_of(world.job);
  ASSERT_EQ(waits.size(), 1u);
  EXPECT_LE(waits[0].since_ns, monotonic_ns()) << "not in the future";
}

// After ten seconds, and every thirty; a rank that lies about since when makes no more lines.
TEST(Job, TheLogSaysWhoWaitsNowAndThen) {
  StartedJob world({});
  constexpr int64_t kSecond = 1'000'000'000;
  const int64_t since_s = monotonic_ns() / kSecond;
  const auto lines_at = [&](int64_t second) {
    ::testing::internal::CaptureStderr();
    say_who_waits(world.job, (since_s + second) * kSecond);
    return ::testing::internal::GetCapturedStderr();
  };
  world.header(0).said_wait.store(said(shm::WaitsFor::kCollective, 2, since_s * kSecond));
  for (int second = 0; second < 100; ++second) {
    const std::string lines = lines_at(second);
    EXPECT_EQ(lines.empty(), second != 10 && second != 40 && second != 70) << second << lines;
    if (lines.empty()) continue;
    EXPECT_NE(lines.find(fmt::format("event=waiting job='{}' rank=0 for='rank 1 in a collective' "
                                     "seconds={}",
                                     world.job.options().name, second)),
              std::string::npos)
        << lines;
  }
  int told = 0;
  for (int second = 200; second < 300; ++second) {
    world.header(0).said_wait.store(
        said(shm::WaitsFor::kCollective, 2, (second % 2 + 1) * kSecond));
    told += lines_at(second).empty() ? 0 : 1;
  }
  EXPECT_LE(told, 4);
}

// Other weights than those of the first load, with the moments that there are.
TEST(Job, AChunkIsLoadedAgainBetweenSteps) {
  StartedJob world({});
  world.write_grads(0, 1);
  world.post(0, 1);
  shm::LoadChunk message{};
  message.chunk = 1;
  EXPECT_EQ(world.job.load_chunk(world.rank(0), message).code(), Code::kProtocol)
      << "while a step waits for another rank";
  world.write_grads(1, 1);
  world.post(1, 1);
  world.run_workers();
  const auto moment = [&] { return *world.rank(0).memory->moment(0, 1, 0); };
  const float before = moment();
  EXPECT_NE(before, 0);
  const std::vector<float> values(world.model.shape.chunk_numel, 0.25f);
  world.trainers.rank(0).fill_grad_slot(1, values.data());
  EXPECT_EQ(world.job.load_chunk(world.rank(1), message).code(), Code::kProtocol);
  ASSERT_TRUE(world.job.load_chunk(world.rank(0), message).ok());
  world.run_workers();
  float value;
  std::memcpy(&value, world.rank(1).memory->param(1, 0), sizeof value);
  EXPECT_EQ(value, 0.25f);
  EXPECT_EQ(moment(), before);
  for (uint32_t rank = 0; rank < 2; ++rank) world.write_grads(rank, 2);
  world.post_all(2);
  // The step is committed and in hand: the load comes behind it, whatever the trainer saw first.
  must(world.job.load_chunk(world.rank(0), message));
  world.run_workers();
  EXPECT_EQ(world.finished_step(), 2u);
  EXPECT_EQ(world.rank(0).memory->chunk_record(1).loads_taken.load(), 3u);
}

TEST(Job, OnlyRankZeroLoadsChunksThatThereAre) {
  InProcessJob world({});
  world.claim(0);
  world.claim(1);
  shm::LoadChunk message{};
  message.chunk = 3;
  EXPECT_EQ(world.job.load_chunk(world.rank(0), message).code(), Code::kProtocol);
  message.chunk = 0;
  EXPECT_EQ(world.job.load_chunk(world.rank(1), message).code(), Code::kProtocol);
}

// ---- memory on its way, timeouts, stops ----

TEST(Job, WaitsForMemoryThatIsOnItsWayAndCancelsIt) {
  InProcessJob world({});
  world.claim(0);
  world.claim(1);
  world.reserve(0);
  const std::shared_ptr<FillProgress> progress = world.rank(1).reservation->progress;
  world.job.lose_rank(world.rank(0));
  EXPECT_TRUE(progress->cancelled.load());
  EXPECT_EQ(world.ports.overs, 0);
  world.job.reserved(world.rank(1), Status(Code::kUnavailable, "cancelled"));
  EXPECT_EQ(world.ports.overs, 1);
  expect_told(world.ports, 1, Code::kPeerLost, "died");  // the first reason, not this one
}

TEST(Job, MemoryThatCannotBeHadEndsTheJob) {
  InProcessJob world({});
  world.claim(0);
  world.job.reserved(world.rank(0), Status(Code::kResourceExhausted, "no room"));
  expect_told(world.ports, 0, Code::kResourceExhausted, "no room");
  EXPECT_EQ(world.ports.overs, 1);
}

TEST(Job, NamesTheRankThatDoesNotCome) {
  constexpr int64_t kSecond = 1'000'000'000;
  InProcessJob world({});
  world.claim(0);
  const int64_t late_ns = monotonic_ns() + 61 * kSecond;
  world.job.check_timeout(late_ns, 60);  // the rank waits for its memory, not we for it
  EXPECT_EQ(world.ports.overs, 0);
  world.reserve(0);
  world.job.check_timeout(late_ns + 59 * kSecond, 60);
  EXPECT_EQ(world.ports.overs, 0);
  world.job.check_timeout(late_ns + 61 * kSecond, 60);
  EXPECT_EQ(world.ports.overs, 1);
  ASSERT_EQ(world.ports.told.size(), 1u);
  EXPECT_EQ(world.ports.told[0].cause, 1u);
  expect_told(world.ports, 0, Code::kTimedOut, "rank 1 of job 'job'");
}

TEST(Job, AStopTellsEveryRank) {
  StartedJob world({});
  world.job.stop();
  for (uint32_t rank = 0; rank < 2; ++rank) {
    expect_told(world.ports, rank, Code::kUnavailable, "elixird was stopped");
    EXPECT_EQ(world.ports.told[rank].cause, kNoRank);
  }
  EXPECT_EQ(world.ports.overs, 1);
}

}  // namespace
}  // namespace elixir::daemon
