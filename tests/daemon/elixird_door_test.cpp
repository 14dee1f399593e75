// Who comes to elixird's sockets without being a trainer, or as a bad one: it lives, keeps its
// memory, and the jobs that are there go on.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "base/clock.h"
#include "tests/daemon/daemon_process.h"
#include "tests/daemon/fake_job.h"
#include "tests/daemon/strangers.h"
#include "tests/daemon/told.h"
#include "tests/support/every_case.h"
#include "tests/support/lingering_socket.h"
#include "tests/support/patience.h"
#include "tests/support/sanitized.h"

namespace elixir::testing {
namespace {

constexpr uint64_t kMiB = 1 << 20;

// The address sanitizer lays what is freed aside, the thread sanitizer keeps several bytes of its
// own for each byte that was touched once: then a process's memory says little of what it holds.
constexpr bool kKeepsFreedMemory = kSanitized;

// A peer that never reads on one of elixird's ZeroMQ sockets.
class DeafPeer {
 public:
  explicit DeafPeer(const std::string& endpoint) {
    const int few = 1, none = 0, limit_ms = test::kPatienceMs;
    zmq_setsockopt(socket_, ZMQ_RCVHWM, &few, sizeof few);
    zmq_setsockopt(socket_, ZMQ_LINGER, &none, sizeof none);
    zmq_setsockopt(socket_, ZMQ_SNDTIMEO, &limit_ms, sizeof limit_ms);
    EXPECT_EQ(zmq_connect(socket_, endpoint.c_str()), 0);
  }
  ~DeafPeer() {
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }
  DeafPeer(const DeafPeer&) = delete;

  // Waits while elixird takes no more. How many could be sent.
  int send(int times, const std::string& message) {
    for (int sent = 0; sent < times; ++sent) {
      if (zmq_send(socket_, message.data(), message.size(), 0) < 0) return sent;
    }
    return times;
  }

 private:
  void* const context_ = zmq_ctx_new();
  void* const socket_ = zmq_socket(context_, ZMQ_DEALER);
};

uint64_t resident_bytes(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/statm");
  uint64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

// Of the numbers that follow `part`.
uint64_t sum_of(const std::string& text, const std::string& part) {
  uint64_t sum = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    sum += std::strtoull(text.c_str() + at + part.size(), nullptr, 10);
  }
  return sum;
}

INSTANTIATE_TEST_SUITE_P(Door, Sockets, ::testing::Values("attach", "control", "status"));

// Sent to be closed, after bytes that are no message of anybody: elixird's threads go on, and end.
TEST_P(Sockets, DescriptorsWhoseLastCloseWouldWaitHoldNobodyUp) {
  DaemonProcess daemon;
  const auto job = start_job(daemon);
  constexpr size_t kSockets = 8;
  std::vector<test::LingeringSocket> sockets(kSockets);
  std::vector<UniqueFd> peers;
  daemon.signal(SIGSTOP);  // so that elixird's copies are the last ones
  for (test::LingeringSocket& socket : sockets) {
    peers.push_back(connect_to(path(daemon), type()));
    ASSERT_TRUE(peers.back().valid());
    ASSERT_EQ(::send(peers.back().get(), "x", 1, MSG_NOSIGNAL), 1);
    (void)socket.send_away(peers.back().get(), "x");  // some kernels do not let it
  }
  daemon.signal(SIGCONT);
  for (const UniqueFd& peer : peers) {
    EXPECT_TRUE(becomes_true([&] { return is_closed(peer.get()); }));
  }
  expect_steps(*job, 3);
  EXPECT_NE(daemon.ask_status(), "");
  daemon.signal(SIGTERM);
  EXPECT_EQ(daemon.wait(), 0);
}

// Whole messages of nobody, as fast as they go: dropped, and hardly told of.
TEST(Door, AFloodOfMessagesOfNobodyLeavesMemoryLogAndJobsAlone) {
  DaemonProcess daemon;
  const auto job = start_job(daemon);
  const uint64_t before_bytes = resident_bytes(daemon.pid());
  const size_t log_before = daemon.log().size();
  const int64_t start_ns = monotonic_ns();
  std::thread flood([&daemon] {
    // Each takes 64 bytes where it is queued: all of them 18 MiB.
    constexpr int kMessages = 300'000;
    DeafPeer peer(daemon.folder().control_endpoint());
    EXPECT_EQ(peer.send(kMessages, "hello"), kMessages);
  });
  expect_steps(*job, 5);
  flood.join();
  if (!kKeepsFreedMemory) {
    EXPECT_LT(resident_bytes(daemon.pid()), before_bytes + 12 * kMiB);
  }
  EXPECT_TRUE(becomes_true([&] { return count(daemon.log(), "event=control_dropped") > 0; }));
  // A line a second.
  const auto seconds = static_cast<size_t>(seconds_since(start_ns));
  EXPECT_LE(count(daemon.log(), "event=control_dropped"), seconds + 2);
  EXPECT_LT(daemon.log().size() - log_before, (seconds + 2) * 1000);
}

TEST(Door, StatusForThoseWhoNeverReadIsBounded) {
  DaemonProcess daemon;
  std::vector<std::unique_ptr<FakeJob>> jobs;
  for (int i = 0; i < 8; ++i) jobs.push_back(start_job(daemon, fmt::format("job-{}", i)));
  const uint64_t before_bytes = resident_bytes(daemon.pid());
  std::vector<std::unique_ptr<DeafPeer>> deaf;
  for (int i = 0; i < 16; ++i) {
    deaf.push_back(std::make_unique<DeafPeer>(daemon.folder().status_endpoint()));
    EXPECT_EQ(deaf.back()->send(2000, "status"), 2000);
  }
  // Who reads is answered, and their answers are not kept: 32,000 documents would be 400 MiB.
  for (int i = 0; i < 20; ++i) EXPECT_NE(daemon.ask_status(), "");
  EXPECT_TRUE(jobs[0]->step(1).ok());
  if (!kKeepsFreedMemory) {
    EXPECT_LT(resident_bytes(daemon.pid()), before_bytes + 48 * kMiB);
  }
}

// A document of many jobs is work: who asks in a loop gets what was made up to 50 ms before.
TEST(Door, StatusIsMadeAtMostTwentyTimesASecondWhileNothingHappens) {
  DaemonProcess daemon;
  std::set<double> made_at;
  const int64_t start_ns = monotonic_ns();
  for (int i = 0; i < 100; ++i) {
    const auto status = nlohmann::json::parse(daemon.ask_status());
    made_at.insert(status["daemon"]["uptime_s"].get<double>());
  }
  EXPECT_LE(static_cast<double>(made_at.size()), seconds_since(start_ns) / 0.05 + 2);
}

// The others are closed and told of, though elixird has nothing else to do.
TEST(Door, ConnectionsThatAskForStatusAreBounded) {
  constexpr size_t kConnections = 200, kMostConnections = 64;
  DaemonProcess daemon;
  std::vector<UniqueFd> peers;
  const size_t before = open_descriptors(daemon.pid());
  while (peers.size() < kConnections) {
    peers.push_back(connected_to(daemon.folder().status_socket(), SOCK_STREAM));
  }
  ASSERT_TRUE(becomes_true([&] {
    const auto closed = std::count_if(peers.begin(), peers.end(),
                                      [](const UniqueFd& fd) { return is_closed(fd.get()); });
    return static_cast<size_t>(closed) >= kConnections - kMostConnections;
  }));
  EXPECT_TRUE(
      becomes_true([&] { return open_descriptors(daemon.pid()) <= before + kMostConnections; }));
  EXPECT_TRUE(becomes_true([&] {
    return sum_of(daemon.log(), "event=connections_closed too_many=") >=
           kConnections - kMostConnections;
  })) << daemon.log();
  peers.clear();
  EXPECT_NE(daemon.ask_status(), "");  // it tries again until there is room
}

// As many as keep a rank's Hello out: with half a greeting, a greeting, a handshake, a message of
// nobody, or nothing. They have their time, and no more.
TEST(Door, SilentStrangersKeepNobodyOut) {
  constexpr size_t kStrangers = 400;
  DaemonProcess daemon;
  const auto job = start_job(daemon);
  std::string greeting("\xff\0\0\0\0\0\0\0\0\x7f\3\0NULL", 16);
  greeting.resize(64);
  const std::string handshake =
      greeting + std::string("\x04\x1c\x05READY\x0bSocket-Type\0\0\0\6DEALER", 30);
  const std::string sent[] = {"", greeting.substr(0, 30), greeting, handshake,
                              handshake + std::string("\0\5hello", 7)};
  std::vector<UniqueFd> strangers;
  while (strangers.size() < kStrangers) {
    strangers.push_back(connected_to(daemon.folder().control_socket(), SOCK_STREAM));
    const std::string& bytes = sent[strangers.size() % std::size(sent)];
    (void)::send(strangers.back().get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  const auto next = start_job(daemon, "next");
  expect_steps(*next, 2);
  expect_steps(*job, 2);
  for (const UniqueFd& stranger : strangers) {
    EXPECT_TRUE(becomes_true([&] { return is_closed(stranger.get()); }));
  }
  expect_steps(*start_job(daemon, "last"), 2);
  EXPECT_TRUE(becomes_true([&] { return sum_of(daemon.log(), " silent=") >= 250; }))
      << daemon.log();
}

// One who has connected to attach and says nothing is told so after 30 s.
TEST(Door, WhoConnectsToAttachAndDoesNotIsEnded) {
  if (!every_case()) GTEST_SKIP() << "ELIXIR_EVERY_CASE: it takes half a minute";
  DaemonProcess daemon;
  const UniqueFd stranger = connected_to(daemon.folder().attach_socket(), SOCK_SEQPACKET);
  EXPECT_TRUE(becomes_true([&] { return is_closed(stranger.get()); }));
  EXPECT_NE(daemon.log().find("no AttachRequest within 30 s"), std::string::npos) << daemon.log();
}

// One who connects again as soon as elixird has closed it must not hold the event loop, and cannot
// fill the log.
TEST(Door, AStormOfConnectionsHoldsNobodyUp) {
  DaemonProcess daemon;
  const auto job = start_job(daemon);
  std::atomic<bool> over{false};
  std::atomic<int> made{0};
  std::vector<std::thread> storm;
  for (int i = 0; i < 2; ++i) {
    storm.emplace_back([&] {
      const std::string garbage = "GET / HTTP/1.1";
      while (!over.load()) {
        const UniqueFd peer = connect_to(daemon.folder().attach_socket(), SOCK_SEQPACKET);
        if (!peer.valid()) continue;
        made += ::send(peer.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL) > 0;
      }
    });
  }
  EXPECT_TRUE(becomes_true([&] { return made.load() > 2000; }));
  // Each with the deadlines of an honest trainer.
  expect_steps(*job, 20);
  EXPECT_NE(daemon.ask_status(), "");
  const int made_meanwhile = made.load();
  EXPECT_TRUE(becomes_true([&] { return made.load() > made_meanwhile; })) << "the storm was over";
  over = true;
  for (std::thread& thread : storm) thread.join();
  EXPECT_LT(count(daemon.log(), "event=refuse pid"), static_cast<size_t>(made.load() / 2));
}

// Those beyond a tick's lines by their number, though elixird has nothing else to do.
TEST(Door, RefusalsThatABurstLeftUntoldAreToldThoughNobodyComesAfterIt) {
  DaemonProcess daemon;
  const std::string garbage = "GET / HTTP/1.1";
  constexpr uint64_t kBurst = 100;
  for (uint64_t i = 0; i < kBurst; ++i) {
    const UniqueFd peer = connected_to(daemon.folder().attach_socket(), SOCK_SEQPACKET);
    ASSERT_GT(::send(peer.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL), 0);
  }
  EXPECT_TRUE(becomes_true([&] {
    const std::string log = daemon.log();
    return count(log, "event=refuse pid") + sum_of(log, "event=refuse more=") == kBurst;
  })) << daemon.log();
}

// ---- holes ----

// Pages that a trainer takes back are not reserved any more: the kernel would look for others when
// an update writes there, and end whom it likes where there are none.
TEST(Door, AHoleInReservedMemoryEndsThatJobAndNamesTheRank) {
  DaemonProcess daemon;
  const auto other = start_job(daemon, "other");
  FakeJob job({.folder = daemon.folder(), .name = "holes", .model = door_model(2)});
  for (uint32_t rank = 0; rank < 2; ++rank) {
    job.ranks().push_back(must(FakeTrainer::attach(job.options_of(rank))));
  }
  for (auto& rank : job.ranks()) ASSERT_TRUE(rank->await_peers().ok());
  const int grads = job.rank(1).grads().fd();
  ASSERT_EQ(::fallocate(grads, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 8192), 0);
  const char* const text = "pages of this rank's shared memory are gone";
  expect_ended(job.rank(0), Code::kPeerLost, 1, text);
  expect_ended(job.rank(1), Code::kProtocol, 1, text);
  expect_steps(*other, 3);
}

}  // namespace
}  // namespace elixir::testing
