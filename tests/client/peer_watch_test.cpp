#include "client/ranks/peer_watch.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "client/ranks/tcp.h"
#include "client/ranks/watch_connection.h"
#include "tests/client/forked_ranks.h"
#include "tests/support/outcomes.h"

namespace elixir {
namespace {

using test::kPatienceS;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<Member> members_of(uint32_t ranks) {
  std::vector<Member> members;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    members.push_back({rank, 1000 + rank, "host-" + std::to_string(rank), ""});
  }
  return members;
}

// All ranks in one process: each watch has its thread anyway.
struct Star {
  explicit Star(uint32_t ranks) {
    auto center = PeerWatch::listen("127.0.0.1", members_of(ranks));
    EXPECT_TRUE(center.ok()) << center.status().message();
    watches.push_back(std::move(*center));
    for (uint32_t rank = 1; rank < ranks; ++rank) {
      auto watch = PeerWatch::connect(watches[0]->endpoint(), rank, members_of(ranks), kPatienceS);
      EXPECT_TRUE(watch.ok()) << watch.status().message();
      watches.push_back(std::move(*watch));
    }
    EXPECT_TRUE(watches[0]->await_connected(kPatienceS).ok());
  }
  std::vector<std::unique_ptr<PeerWatch>> watches;
};

TEST(PeerWatchTest, GoodbyesAreNoDeaths) {
  Star star(3);
  std::atomic<int> calls = 0;
  for (auto& watch : star.watches) watch->set_callback([&](const Status&) { ++calls; });
  star.watches[1].reset();
  // A collective that fails now fails for that reason, which is known without being a fault.
  for (const int other : {0, 2}) {
    const auto told = [&] { return !star.watches[other]->await_status(0).ok(); };
    ASSERT_TRUE(eventually(told));
    const Status status = star.watches[other]->await_status(0);
    test::expect_refused(status, Code::kPeerLost,
                         {"rank 1 (pid 1001 on host-1)", "same number of steps"});
    EXPECT_TRUE(star.watches[other]->status().ok());
  }
  star.watches[0].reset();
  star.watches[2].reset();
  EXPECT_EQ(calls, 0);
}

TEST(PeerWatchTest, ARankThatIsNotWellTellsTheOthersByItself) {
  Star star(3);
  std::atomic<bool> well = true;
  std::atomic<int> asked = 0;
  star.watches[1]->set_health([&] {
    ++asked;
    return well ? Status() : error(Code::kInternal, "a bone is broken");
  });
  EXPECT_TRUE(eventually([&] { return asked >= 2; }));
  for (auto& watch : star.watches) EXPECT_TRUE(watch->status().ok());
  well = false;
  EXPECT_EQ(star.watches[1]->await_status(kPatienceS).message(), "a bone is broken");
  EXPECT_EQ(star.watches[1]->status().code(), Code::kInternal);
  for (const int other : {0, 2}) {
    EXPECT_EQ(star.watches[other]->await_status(kPatienceS).message(),
              "rank 1 (pid 1001 on host-1) failed: a bone is broken");
    EXPECT_EQ(star.watches[other]->status().code(), Code::kPeerLost);
  }
}

TEST(PeerWatchTest, OneThatIsTakenBackIsNotAskedForWhileAnotherRanksIs) {
  std::atomic<int> asked = 0, others = 0;
  Star star(2);
  star.watches[1]->set_health([&] { return ++asked, Status(); });
  star.watches[0]->set_health([&] { return ++others, Status(); });
  EXPECT_TRUE(eventually([&] { return asked >= 1; }));
  star.watches[1]->set_health({});
  const int last = asked, others_before = others;
  EXPECT_TRUE(eventually([&] { return others >= others_before + 2; }));
  EXPECT_EQ(asked, last);
}

TEST(PeerWatchTest, WhoSuffersFromAnotherLetsThatOneSpeakFirst) {
  // Once is enough: it speaks itself where this thread is held up for kBlameS.
  EXPECT_TRUE(eventually([] {
    std::atomic<int> asked = 0;
    Star star(2);
    star.watches[0]->set_health([&] {
      ++asked;
      return error(Code::kPeerLost, "somebody else");
    });
    EXPECT_TRUE(eventually([&] { return asked >= 2; }));
    const bool waits = star.watches[0]->status().ok();
    star.watches[1]->report(error(Code::kInternal, "it was me"));
    const std::string said = star.watches[0]->await_status(kPatienceS).message();
    return waits && said.find("it was me") != std::string::npos;
  }));
}

TEST(PeerWatchTest, WhoSuffersFromAnotherSpeaksInTheEnd) {
  Star star(2);
  star.watches[0]->set_health([] { return error(Code::kPeerLost, "somebody else"); });
  EXPECT_EQ(star.watches[1]->await_status(kPatienceS).message(), "somebody else");
}

TEST(PeerWatchTest, AReportReachesAllAndTheFirstOneCounts) {
  Star star(4);
  std::atomic<int> calls = 0;
  star.watches[3]->set_callback([&](const Status& status) {
    EXPECT_THAT(status.message(), HasSubstr("elixird saw rank 1 die"));
    ++calls;
  });
  star.watches[2]->report(error(Code::kPeerLost, "elixird saw rank 1 die"));
  for (auto& watch : star.watches) {
    EXPECT_EQ(watch->await_status(kPatienceS).message(), "elixird saw rank 1 die");
    EXPECT_EQ(watch->status().code(), Code::kPeerLost);
  }
  star.watches[3]->report(error(Code::kPeerLost, "something later"));
  EXPECT_EQ(star.watches[3]->status().message(), "elixird saw rank 1 die");
  EXPECT_TRUE(eventually([&] { return calls == 1; }));
}

TEST(PeerWatchTest, AFailureOfItsOwnKeepsItsCodeAtHomeOnly) {
  Star star(3);
  star.watches[1]->report(error(Code::kResourceExhausted, "out of memory"));
  EXPECT_EQ(star.watches[1]->status().code(), Code::kResourceExhausted);
  for (const int other : {0, 2}) {
    const Status status = star.watches[other]->await_status(kPatienceS);
    EXPECT_EQ(status.code(), Code::kPeerLost);
    EXPECT_EQ(status.message(), "rank 1 (pid 1001 on host-1) failed: out of memory");
  }
}

TEST(PeerWatchTest, ACallbackSetTooLateIsCalledAndOneTakenBackIsNot) {
  Star star(2);
  std::atomic<int> late = 0, never = 0;
  star.watches[0]->set_callback([&](const Status&) { ++never; });
  star.watches[0]->set_callback({});
  star.watches[1]->report(error(Code::kPeerLost, "x"));
  for (auto& watch : star.watches) EXPECT_FALSE(watch->await_status(kPatienceS).ok());
  star.watches[1]->set_callback([&](const Status&) { ++late; });
  EXPECT_TRUE(eventually([&] { return late == 1; }));
  star.watches.clear();
  EXPECT_EQ(never, 0);
}

TEST(PeerWatchTest, ARankThatEndsByAnExceptionSaysSo) {
  Star star(3);
  try {
    const std::unique_ptr<PeerWatch> failing = std::move(star.watches[2]);
    throw std::runtime_error("a bug of the program");
  } catch (const std::runtime_error&) {
  }
  for (const int other : {0, 1}) {
    EXPECT_THAT(star.watches[other]->await_status(kPatienceS).message(),
                HasSubstr("rank 2 (pid 1002 on host-2) ended with an error"));
  }
}

// Long waits are no fault: for a rank that is busy, in this collective or the one before.
TEST(PeerWatchTest, RanksThatWaitInDifferentCollectivesOfOneNumberAreNamed) {
  std::atomic<int> asked = 0;
  Star star(4);
  const CollectiveSignature gather{CollectiveKind::kAllGather, 512};
  star.watches[0]->set_waiting(7, gather);
  star.watches[1]->set_waiting(7, gather);
  star.watches[2]->set_waiting(8, {CollectiveKind::kValues, 16});
  // Asked once a second, and when another one tells that it waits.
  star.watches[0]->set_health([&] { return ++asked, Status(); });
  EXPECT_TRUE(eventually([&] { return asked >= PeerWatch::kStuckSeconds + 3; }));
  for (auto& watch : star.watches) EXPECT_TRUE(watch->status().ok());

  star.watches[3]->set_waiting(7, {CollectiveKind::kReduceScatter, 512});
  for (auto& watch : star.watches) {
    test::expect_refused(watch->await_status(kPatienceS), Code::kProtocol,
                         {"rank 3 (pid 1003 on host-3) waits in a reduce-scatter of 512",
                          "rank 0 (pid 1000 on host-0) waits in an all-gather of 512", "number 7"});
  }
}

TEST(PeerWatchTest, SaysForWhomThisRankWaitsUntilItDoesNot) {
  Star star(2);
  std::atomic<uint32_t> peer = 77;
  std::atomic<int64_t> since_ns = -1;
  PeerWatch& watch = *star.watches[0];
  watch.set_on_wait([&](uint32_t of, int64_t since) { peer = of, since_ns = since; });
  EXPECT_TRUE(eventually([&] { return since_ns == 0; }));
  watch.set_waiting(7, {CollectiveKind::kAllGather, 512});
  watch.set_waiting_for(1);
  EXPECT_TRUE(eventually([&] { return since_ns > 0; }));
  EXPECT_EQ(peer, 1u);
  watch.set_waiting(0);
  EXPECT_TRUE(eventually([&] { return since_ns == 0; }));
  watch.set_on_device(9, 4, {CollectiveKind::kAllGather, 512, 3});
  EXPECT_TRUE(eventually([&] { return since_ns > 0; }));
  EXPECT_EQ(peer, PeerWatch::kUnknownPeer);
  watch.set_on_wait({});
}

// What a rank says of itself; each is told of once it has stood still for PeerWatch::kStuckSeconds.
struct Standing {
  uint64_t waits_in = 0;  // a collective of the host; 0: it does not wait
  uint64_t came_to = 0;   // the last one that is over
  uint64_t made = 0, oldest = 0;
  CollectiveKind kind = CollectiveKind::kAllGather;
};

void stand(PeerWatch& watch, const Standing& how) {
  if (how.came_to > 0) watch.set_waiting(how.came_to, {CollectiveKind::kValues, 16});
  watch.set_waiting(how.waits_in, {CollectiveKind::kValues, 16});
  watch.set_on_device(how.made, how.oldest, {how.kind, 512, 3});
}

TEST(PeerWatchTest, RanksWhoseDevicesWaitInDifferentCollectivesAreNamed) {
  Star star(2);
  stand(*star.watches[0], {.made = 9, .oldest = 4});
  stand(*star.watches[1], {.made = 9, .oldest = 4, .kind = CollectiveKind::kReduceScatter});
  for (auto& watch : star.watches) {
    test::expect_refused(watch->await_status(kPatienceS), Code::kProtocol,
                         {"rank 0 (pid 1000 on host-0) waits in an all-gather of 512 bytes a rank "
                          "of chunk 3",
                          "rank 1 (pid 1001 on host-1) waits in a reduce-scatter",
                          "collective number 4 of their devices"});
  }
}

TEST(PeerWatchTest, ARankThatHasMadeMoreOnItsDeviceThanOneThatWaitsForItIsNamed) {
  Star star(2);
  stand(*star.watches[0], {.waits_in = 8, .made = 12});
  stand(*star.watches[1], {.came_to = 7, .made = 13, .oldest = 13});
  for (auto& watch : star.watches) {
    test::expect_refused(
        watch->await_status(kPatienceS), Code::kProtocol,
        {"rank 1 (pid 1001 on host-1) has made 13 collectives on its device",
         "rank 0 (pid 1000 on host-0), which waits in an exchange of values", "has made 12"});
  }
}

// Ranks that do the same, one after the other, are slow and not wrong.
TEST(PeerWatchTest, ARankThatIsBehindIsNotAccused) {
  const std::vector<std::pair<Standing, Standing>> pairs = {
      // It has made fewer and will make the others.
      {{.waits_in = 8, .made = 12}, {.came_to = 7, .made = 11, .oldest = 11}},
      // It has come to a later collective, in which the other one has a part to come.
      {{.waits_in = 8, .made = 12}, {.came_to = 8, .made = 13, .oldest = 13}},
      // Of their devices one has the next collective under way, or both have the same.
      {{.made = 5, .oldest = 4}, {.made = 5, .oldest = 5, .kind = CollectiveKind::kReduceScatter}},
      {{.made = 5, .oldest = 4}, {.made = 7, .oldest = 4}}};
  std::atomic<int> asked = 0;  // the last watch that was made, about once a second
  std::vector<std::unique_ptr<Star>> stars;
  for (const auto& [one, other] : pairs) {
    stars.push_back(std::make_unique<Star>(2));
    stand(*stars.back()->watches[0], one);
    stand(*stars.back()->watches[1], other);
  }
  stars.back()->watches[0]->set_health([&] { return ++asked, Status(); });
  EXPECT_TRUE(eventually([&] { return asked >= PeerWatch::kStuckSeconds + 3; }));
  for (const auto& star : stars) {
    for (auto& watch : star->watches) EXPECT_TRUE(watch->status().ok());
  }
}

TEST(PeerWatchTest, RanksThatDoNotConnectAreNamed) {
  auto center = PeerWatch::listen("127.0.0.1", members_of(3));
  const auto one = PeerWatch::connect((*center)->endpoint(), 2, members_of(3), kPatienceS);
  ASSERT_TRUE(one.ok());
  const Status status = (*center)->await_connected(0.2);
  test::expect_refused(status, Code::kTimedOut, {"1 of 3 ranks", "rank 1 (pid 1001"});
}

TEST(PeerWatchTest, StrangersAreDropped) {
  auto center = PeerWatch::listen("127.0.0.1", members_of(2));
  const WatchEndpoint endpoint = (*center)->endpoint();
  std::vector<UniqueFd> strangers;
  const auto come = [&](const std::string& words) {
    strangers.push_back(
        std::move(*connect_tcp(endpoint.address, endpoint.port, kPatienceS, "the watch", "")));
    ::send(strangers.back().get(), words.data(), words.size(), MSG_NOSIGNAL);
  };
  for (int i = 0; i < 100; ++i) come("");  // more than it keeps waiting
  come("GET / HTTP/1.1\r\n\r\n");
  come(std::string(100000, '\0'));
  come(encode_watch_frame({WatchFrameType::kGoodbye, 1, Code::kOk, endpoint.token}));
  come(encode_watch_frame({WatchFrameType::kHello, 1, Code::kOk, std::string(32, '0')}));
  come(encode_watch_frame({WatchFrameType::kHello, 0, Code::kOk, endpoint.token}));
  come(encode_watch_frame({WatchFrameType::kHello, 2, Code::kOk, endpoint.token}));
  const auto real = PeerWatch::connect(endpoint, 1, members_of(2), kPatienceS);
  ASSERT_TRUE(real.ok()) << real.status().message();
  EXPECT_TRUE((*center)->await_connected(kPatienceS).ok());
  // Nobody can come once all are there, with a true token either.
  WatchEndpoint gone = endpoint;
  EXPECT_FALSE(PeerWatch::connect(gone, 1, members_of(2), 0.3).ok());
  EXPECT_TRUE((*center)->status().ok());
  EXPECT_TRUE((*real)->status().ok());
}

TEST(WatchFrameTest, PiecesAreJoinedAndRubbishIsRefused) {
  const WatchFrame sent{WatchFrameType::kFault, 7, Code::kPeerLost, "text"};
  const std::string whole = encode_watch_frame(sent);
  for (size_t cut = 0; cut < whole.size(); ++cut) {
    WatchFrame got;
    std::string bytes = whole.substr(0, cut);
    EXPECT_EQ(take_watch_frame(&bytes, &got), 0) << cut;
    bytes += whole.substr(cut) + "x";
    ASSERT_EQ(take_watch_frame(&bytes, &got), 1) << cut;
    EXPECT_EQ(got.text, "text");
    EXPECT_EQ(got.rank, 7u);
    EXPECT_EQ(got.code, Code::kPeerLost);
    EXPECT_EQ(bytes, "x");
  }
  for (const size_t place : {0, 3, 4, 5, 7}) {  // magic, type, the text's length
    std::string bytes = whole;
    bytes[place] = '\x7f';
    WatchFrame got;
    EXPECT_EQ(take_watch_frame(&bytes, &got), -1) << place;
  }
  std::string longest =
      encode_watch_frame({WatchFrameType::kFault, 0, Code::kOk, std::string(100000, 'x')});
  WatchFrame got;
  ASSERT_EQ(take_watch_frame(&longest, &got), 1);
  EXPECT_EQ(got.text.size(), kMaxWatchTextBytes);
}

TEST(WatchEndpointTest, ComesBackAndRubbishIsRefused) {
  const WatchEndpoint endpoint{"fe80::1%eth0", 4711, std::string(32, 'a')};
  const Result<WatchEndpoint> back = WatchEndpoint::decode(endpoint.encode());
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->address, endpoint.address);
  EXPECT_EQ(back->port, endpoint.port);
  EXPECT_EQ(back->token, endpoint.token);
  for (const char* bad : {"", "\t\t", "a\t1\tb", "a\tx\taaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}) {
    EXPECT_EQ(WatchEndpoint::decode(bad).status().code(), Code::kProtocol) << bad;
  }
}

// ---- ranks as processes ----

// Waits for a fault and writes it down; ends with its code. Stage 1: connected, and one more for
// each look at its health.
int watch_until_fault(uint32_t rank, const std::vector<Member>& members, Blackboard& board) {
  int looks = 1;  // one a second
  std::unique_ptr<PeerWatch> watch;
  if (rank == 0) {
    auto center = PeerWatch::listen("127.0.0.1", members);
    board.write(7, (*center)->endpoint().encode());
    board.reach(7, 1);
    watch = std::move(*center);
    if (!watch->await_connected(kPatienceS).ok()) return 1;
  } else {
    if (!eventually([&] { return board.stage(7) == 1; })) return 1;
    auto own = PeerWatch::connect(*WatchEndpoint::decode(board.text(7)), rank, members, kPatienceS);
    if (!own.ok()) return 1;
    watch = std::move(*own);
  }
  board.reach(rank, 1);
  watch->set_health([&] { return board.reach(rank, ++looks), Status(); });
  const Status status = watch->await_status(kPatienceS);
  board.write(rank, status.message());
  return status.exit_code();
}

class PeerWatchKillTest : public ::testing::TestWithParam<uint32_t> {};

TEST_P(PeerWatchKillTest, ADeathIsKnownToAllByName) {
  const uint32_t victim = GetParam();
  ForkedRanks ranks(4, watch_until_fault);
  ASSERT_TRUE(ranks.all_reach(1));
  const std::string name = ranks.name(victim);
  ranks.signal(victim, SIGKILL);
  ASSERT_EQ(ranks.wait(victim), 128 + SIGKILL);
  for (uint32_t rank = 0; rank < 4; ++rank) {
    if (rank == victim) continue;
    EXPECT_EQ(ranks.wait(rank), static_cast<int>(Code::kPeerLost)) << rank;
    EXPECT_THAT(ranks.board().text(rank), HasSubstr(name)) << rank;
  }
}
INSTANTIATE_TEST_SUITE_P(Rank, PeerWatchKillTest, ::testing::Values(0u, 1u, 3u));

// A launcher kills a node's other ranks as soon as one has died; who is slow to look sees both, and
// cannot tell which was the cause.
TEST(PeerWatchStopTest, RanksFoundDeadTogetherAreAllNamed) {
  ForkedRanks ranks(4, watch_until_fault);
  ASSERT_TRUE(ranks.all_reach(1));
  const std::string first = ranks.name(3), second = ranks.name(1);
  ranks.stop(0);
  for (const uint32_t victim : {3u, 1u}) {
    ranks.signal(victim, SIGKILL);
    ASSERT_EQ(ranks.wait(victim), 128 + SIGKILL);
  }
  ranks.signal(0, SIGCONT);
  for (const uint32_t rank : {0u, 2u}) {
    EXPECT_EQ(ranks.wait(rank), static_cast<int>(Code::kPeerLost)) << rank;
    EXPECT_THAT(ranks.board().text(rank), AllOf(HasSubstr(first), HasSubstr(second))) << rank;
  }
}

TEST(PeerWatchStopTest, AStoppedRankIsNotDead) {
  std::vector<std::unique_ptr<ForkedRanks>> groups;
  for (const uint32_t stopped : {0u, 1u}) {
    groups.push_back(std::make_unique<ForkedRanks>(3, watch_until_fault));
    ASSERT_TRUE(groups.back()->all_reach(1));
    groups.back()->stop(stopped);
  }
  for (const auto& ranks : groups) {
    const int before = ranks->board().stage(2);
    EXPECT_TRUE(eventually([&] { return ranks->board().stage(2) >= before + 3; }));
  }
  for (const uint32_t stopped : {0u, 1u}) {
    ForkedRanks& ranks = *groups[stopped];
    ranks.signal(stopped, SIGCONT);
    for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks.board().text(rank), "") << rank;
    // The watch still works.
    const std::string name = ranks.name(2);
    ranks.signal(2, SIGKILL);
    for (const uint32_t rank : {0u, 1u}) {
      EXPECT_EQ(ranks.wait(rank), static_cast<int>(Code::kPeerLost));
      EXPECT_THAT(ranks.board().text(rank), HasSubstr(name));
    }
  }
}

}  // namespace
}  // namespace elixir
