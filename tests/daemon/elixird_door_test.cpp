// Who comes to elixird's sockets without being a trainer, or as a bad one: it lives, keeps its
// memory, and the jobs that are there go on.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

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
#include "tests/support/lingering_socket.h"
#include "tests/support/sanitized.h"

namespace elixir::testing {
namespace {

constexpr uint64_t kMiB = 1 << 20;

// The address sanitizer lays what is freed aside, the thread sanitizer keeps several bytes of its
// own for each byte that was touched once: then a process's memory says little of what it holds.
constexpr bool kKeepsFreedMemory = kSanitized;

std::string zmtp_hello() {
  std::string bytes(64, '\0');
  bytes[0] = '\xff';
  bytes[9] = '\x7f';
  bytes[10] = 3;
  bytes.replace(12, 4, "NULL");
  std::string ready = "\x05READY\x0bSocket-Type";
  ready += std::string("\0\0\0\x06", 4) + "DEALER";
  return bytes + '\x04' + static_cast<char>(ready.size()) + ready;
}

// A peer with whom libzmq has shaken hands. One that sends a message before libzmq's READY has left
// is closed with a protocol error: as a rule beside busy processes, seldom elsewhere. None where
// that takes more than 20 s.
UniqueFd connect_zmtp(const std::string& path) {
  UniqueFd peer;
  const bool connected = becomes_true([&] {
    peer = connect_to(path, SOCK_STREAM);
    return peer.valid();
  });
  const std::string hello = zmtp_hello();
  if (!connected ||
      ::send(peer.get(), hello.data(), hello.size(), MSG_NOSIGNAL) != std::ssize(hello)) {
    return UniqueFd();
  }
  std::string answer;
  const bool ready = becomes_true([&] {
    char bytes[256];
    const ssize_t got = ::recv(peer.get(), bytes, sizeof bytes, MSG_DONTWAIT);
    if (got > 0) answer.append(bytes, static_cast<size_t>(got));
    return answer.find("READY") != std::string::npos;
  });
  return ready ? std::move(peer) : UniqueFd();
}

uint64_t resident_bytes(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/statm");
  uint64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

// `bytes` again and again. What it took until the peer closed or took nothing for 20 s, or
// `most_bytes`.
uint64_t send_until_closed(int socket, const std::string& bytes, uint64_t most_bytes) {
  uint64_t sent_bytes = 0;
  int64_t last_sent_ns = monotonic_ns();
  while (sent_bytes < most_bytes && seconds_since(last_sent_ns) < 20) {
    const std::string_view rest = std::string_view(bytes).substr(sent_bytes % bytes.size());
    const ssize_t sent = ::send(socket, rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      last_sent_ns = monotonic_ns();
      sent_bytes += static_cast<uint64_t>(sent);
    } else if (errno == EAGAIN) {
      pollfd entry{socket, POLLOUT, 0};
      ::poll(&entry, 1, 100);
    } else {
      break;
    }
  }
  return sent_bytes;
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
  auto job = FakeJob::start({.folder = daemon.folder(), .model = door_model()});
  ASSERT_TRUE(job.ok()) << job.status().message();
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
  for (uint32_t step = 1; step <= 3; ++step) EXPECT_TRUE((*job)->step(step).ok());
  EXPECT_NE(daemon.ask_status(), "");
  job->reset();
  daemon.signal(SIGTERM);
  EXPECT_EQ(daemon.wait(), 0);
}

// Frames that say that more will follow are one message, which libzmq keeps until its end.
TEST_P(Sockets, AMessageWithoutAnEndTakesNoMemory) {
  if (is_attach()) GTEST_SKIP() << "packets have an end";
  DaemonProcess daemon;
  auto job = FakeJob::start({.folder = daemon.folder(), .model = door_model()});
  ASSERT_TRUE(job.ok()) << job.status().message();
  const uint64_t before_bytes = resident_bytes(daemon.pid());
  constexpr uint64_t kFloodBytes = 128 * kMiB;
  std::string large, tiny;
  for (int i = 0; i < 16; ++i) {
    large += std::string("\x03\0\0\0\0\0\0\x04\0", 9) + std::string(1024, 'x');
  }
  for (int i = 0; i < 8192; ++i) tiny += std::string("\x01\0", 2);
  for (const std::string& frames : {large, tiny}) {
    const UniqueFd peer = connect_zmtp(path(daemon));
    ASSERT_TRUE(peer.valid());
    EXPECT_LT(send_until_closed(peer.get(), frames, kFloodBytes), kFloodBytes / 16);
    EXPECT_TRUE((*job)->step(frames == large ? 1 : 2).ok());
  }
  if (!kKeepsFreedMemory) {
    EXPECT_LT(resident_bytes(daemon.pid()), before_bytes + kFloodBytes / 4);
  }
  EXPECT_NE(daemon.ask_status(), "");
}

// Whole messages of nobody, as fast as they go: dropped, and hardly told of.
TEST(Door, AFloodOfMessagesOfNobodyLeavesMemoryLogAndJobsAlone) {
  DaemonProcess daemon;
  auto job = FakeJob::start({.folder = daemon.folder(), .model = door_model()});
  ASSERT_TRUE(job.ok()) << job.status().message();
  const uint64_t before_bytes = resident_bytes(daemon.pid());
  const size_t log_before = daemon.log().size();
  const int64_t start_ns = monotonic_ns();
  std::thread flood([&daemon] {
    const UniqueFd peer = connect_zmtp(daemon.folder().control_socket());
    ASSERT_TRUE(peer.valid());
    std::string messages;
    for (int i = 0; i < 4096; ++i) messages += std::string("\0\x05", 2) + "hello";
    // Each takes 64 bytes where it is queued: all of them 18 MiB.
    EXPECT_GE(send_until_closed(peer.get(), messages, 2 * kMiB), 2 * kMiB);
  });
  for (uint32_t step = 1; step <= 5; ++step) EXPECT_TRUE((*job)->step(step).ok());
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
  for (int i = 0; i < 8; ++i) {
    auto job = FakeJob::start(
        {.folder = daemon.folder(), .name = fmt::format("job-{}", i), .model = door_model()});
    ASSERT_TRUE(job.ok()) << job.status().message();
    jobs.push_back(std::move(*job));
  }
  const uint64_t before_bytes = resident_bytes(daemon.pid());
  std::string requests;
  for (int i = 0; i < 2000; ++i) requests += std::string("\0\x06", 2) + "status";
  std::vector<UniqueFd> deaf;
  for (int i = 0; i < 16; ++i) {
    deaf.push_back(connect_zmtp(daemon.folder().status_socket()));
    ASSERT_TRUE(deaf.back().valid());
    ::send(deaf.back().get(), requests.data(), requests.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
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

TEST(Door, ConnectionsThatAskForStatusAreBounded) {
  DaemonProcess daemon;
  std::vector<UniqueFd> peers;
  const size_t before = open_descriptors(daemon.pid());
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(becomes_true([&] {
      peers.push_back(connect_to(daemon.folder().status_socket(), SOCK_STREAM));
      return peers.back().valid();
    }));
  }
  EXPECT_TRUE(becomes_true([&] {
    return std::count_if(peers.begin(), peers.end(),
                         [](const UniqueFd& fd) { return is_closed(fd.get()); }) >= 136;
  }));
  EXPECT_TRUE(becomes_true([&] { return open_descriptors(daemon.pid()) <= before + 64; }));
  peers.clear();
  EXPECT_NE(daemon.ask_status(), "");  // it tries again until there is room
}

// One who connects again as soon as elixird has closed it must not hold the event loop, and cannot
// fill the log.
TEST(Door, AStormOfConnectionsHoldsNobodyUp) {
  DaemonProcess daemon;
  auto job = FakeJob::start({.folder = daemon.folder(), .model = door_model()});
  ASSERT_TRUE(job.ok()) << job.status().message();
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
  for (uint32_t step = 1; step <= 20; ++step) EXPECT_TRUE((*job)->step(step).ok());
  EXPECT_NE(daemon.ask_status(), "");
  const int made_meanwhile = made.load();
  EXPECT_TRUE(becomes_true([&] { return made.load() > made_meanwhile; })) << "the storm was over";
  over = true;
  for (std::thread& thread : storm) thread.join();
  EXPECT_LT(count(daemon.log(), "event=refuse pid"), static_cast<size_t>(made.load() / 2));
}

// elixird has nothing else to do, and tells all the same: of refusals those beyond a tick's lines
// by their number, of connections to its other sockets how many it has closed.
TEST(Door, WhatABurstLeftUntoldIsToldThoughNobodyComesAfterIt) {
  DaemonProcess daemon;
  const std::string garbage = "GET / HTTP/1.1";
  constexpr uint64_t kBurst = 100;
  for (uint64_t i = 0; i < kBurst; ++i) {
    ASSERT_TRUE(becomes_true([&] {
      const UniqueFd peer = connect_to(daemon.folder().attach_socket(), SOCK_SEQPACKET);
      return peer.valid() && ::send(peer.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL) > 0;
    }));
  }
  EXPECT_TRUE(becomes_true([&] {
    const std::string log = daemon.log();
    return count(log, "event=refuse pid") + sum_of(log, "event=refuse more=") == kBurst;
  })) << daemon.log();

  constexpr uint64_t kConnections = 100, kMostConnections = 64;
  std::vector<UniqueFd> peers;
  for (uint64_t i = 0; i < kConnections; ++i) {
    ASSERT_TRUE(becomes_true([&] {
      peers.push_back(connect_to(daemon.folder().status_socket(), SOCK_STREAM));
      return peers.back().valid();
    }));
  }
  EXPECT_TRUE(becomes_true([&] {
    return sum_of(daemon.log(), "event=connections_closed too_many=") >=
           kConnections - kMostConnections;
  })) << daemon.log();
}

TEST(Door, ANameThatWouldForgeALineOfTheLogIsRefused) {
  DaemonProcess daemon;
  for (const char* name : {"a\nerror elixird event=job_over", "a b", "a'b", "a\x1b[31m", ""}) {
    auto job = FakeJob::start({.folder = daemon.folder(), .name = name, .model = door_model()});
    EXPECT_EQ(job.status().code(), Code::kInvalidArgument) << job.status().message();
  }
  EXPECT_EQ(count(daemon.log(), "event=job_over"), 0u);
  EXPECT_EQ(count(daemon.log(), "\x1b"), 0u);
  auto job = FakeJob::start(
      {.folder = daemon.folder(), .name = "run-7.3:node@a+b", .model = door_model()});
  EXPECT_TRUE(job.ok()) << job.status().message();
}

// ---- holes ----

bool punch(int fd, uint64_t bytes) {
  return ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                     static_cast<off_t>(bytes)) == 0;
}

// Pages that a trainer takes back are not reserved any more: the kernel would look for others when
// an update writes there, and end whom it likes where there are none.
TEST(Door, AHoleInReservedMemoryEndsThatJobAndNamesTheRank) {
  DaemonProcess daemon;
  auto other = FakeJob::start({.folder = daemon.folder(), .name = "other", .model = door_model()});
  ASSERT_TRUE(other.ok()) << other.status().message();
  const FakeModel model = door_model(2);
  std::vector<std::unique_ptr<FakeTrainer>> ranks;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    auto trainer = FakeTrainer::attach({.folder = daemon.folder(),
                                        .job = "holes",
                                        .rank = rank,
                                        .shape = model.shape,
                                        .places = model.places});
    ASSERT_TRUE(trainer.ok()) << trainer.status().message();
    ranks.push_back(std::move(*trainer));
  }
  for (auto& rank : ranks) ASSERT_TRUE(rank->await_peers().ok());
  ASSERT_TRUE(punch(ranks[1]->grads().fd(), 8192));
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const auto fault = ranks[rank]->wait_session_fault();
    ASSERT_TRUE(fault.ok()) << fault.status().message();
    EXPECT_EQ(fault->rank, 1u);
    EXPECT_EQ(fault->code, static_cast<uint32_t>(rank == 1 ? Code::kProtocol : Code::kPeerLost));
    EXPECT_NE(shm::get_text(fault->text).find("pages of this rank's shared memory are gone"),
              std::string::npos)
        << shm::get_text(fault->text);
  }
  for (uint32_t step = 1; step <= 3; ++step) EXPECT_TRUE((*other)->step(step).ok());
}

// Again and again, while updates read and write there.
TEST(Door, OnceATrainingHasBegunNobodyPunchesHoles) {
  DaemonProcess daemon;
  auto job = FakeJob::start({.folder = daemon.folder(), .model = door_model(), .pins_params = 1});
  ASSERT_TRUE(job.ok()) << job.status().message();
  if (daemon.log().find("event=not_sealed") != std::string::npos) GTEST_SKIP() << "an old kernel";
  Reference reference(door_model());
  FakeTrainer& rank = (*job)->rank(0);
  std::atomic<bool> over{false};
  std::atomic<int> tried{0}, made{0};
  std::thread puncher([&] {
    while (!over.load()) {
      made += punch(rank.grads().fd(), 8192);
      made += ::madvise(rank.grads().data(), 8192, MADV_REMOVE) == 0;
      ++tried;
    }
  });
  for (uint32_t step = 1; step <= 20; ++step) {
    EXPECT_TRUE((*job)->step(step).ok());
    reference.step(make_record(step, 1));
  }
  EXPECT_TRUE(becomes_true([&] { return tried.load() > 100; }));
  over = true;
  puncher.join();
  EXPECT_EQ(made.load(), 0);
  EXPECT_TRUE((*job)->compare(reference).ok());
}

}  // namespace
}  // namespace elixir::testing
