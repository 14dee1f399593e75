// The life of the process, and its limits.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "base/processors.h"
#include "daemon/job_machine.h"
#include "tests/daemon/daemon_process.h"
#include "tests/daemon/fake_job.h"
#include "tests/daemon/told.h"

namespace elixir::testing {
namespace {

using test::expect_refused;
using test::must;

FakeModel model_of(uint64_t numel, uint32_t ranks = 1) {
  return make_model(ComputeType::kFp32, ranks, 1, numel / 128 * 128);
}

std::unique_ptr<FakeJob> start(const shm::RuntimeFolder& folder,
                               const FakeModel& model = model_of(1024)) {
  return must(FakeJob::start({.folder = folder, .model = model}));
}

// elixird's end leaves none.
void expect_no_sockets(const DaemonProcess& daemon) {
  for (const auto& entry : std::filesystem::directory_iterator(daemon.folder().path)) {
    EXPECT_FALSE(entry.is_socket()) << entry.path();
  }
}

TEST(Process, ASecondOneIsRefusedWithThePidOfTheFirst) {
  DaemonProcess first;
  DaemonProcess second({}, first.folder().path);
  EXPECT_EQ(second.wait(), static_cast<int>(Code::kAlreadyRunning));
  EXPECT_NE(second.log().find(fmt::format("pid {}", first.pid())), std::string::npos)
      << second.log();
  // It took nothing from the first.
  EXPECT_TRUE(start(first.folder())->step(1).ok());
  EXPECT_NE(first.ask_status(), "");
}

bool names_neighbour(const DaemonProcess& daemon, pid_t other) {
  return daemon.log().find(fmt::format("event=shares_processors pid={} ", other)) !=
         std::string::npos;
}

TEST(Process, TwoOnTheSameProcessorsSayThatTheyCompete) {
  const DaemonProcess first, second;
  EXPECT_TRUE(becomes_true([&] { return names_neighbour(second, first.pid()); }));
  // It was there before: it looks while it has jobs.
  const auto job = start(first.folder());
  EXPECT_TRUE(becomes_true([&] { return names_neighbour(first, second.pid()); }));
  const std::string told = fmt::format("{{\"pid\":{},\"processors\":", second.pid());
  EXPECT_NE(first.ask_status().find(told), std::string::npos) << first.ask_status();
}

TEST(Process, TwoOnProcessorsOfTheirOwnDoNot) {
  const std::vector<int> usable = usable_processors();
  if (usable.size() < 2) GTEST_SKIP() << "one processor";
  const auto on = [&](size_t i) {
    return std::vector<std::string>{"taskset", "--cpu-list", std::to_string(usable[i])};
  };
  const DaemonProcess first({}, "", on(0)), second({}, "", on(1));
  // With its status it looks once more.
  const std::string told = fmt::format("\"pid\":{},\"processors\":1", second.pid());
  EXPECT_EQ(first.ask_status().find(told), std::string::npos) << first.ask_status();
  EXPECT_FALSE(names_neighbour(second, first.pid()));
}

// Each job once: a status of many jobs is as long as they are.
TEST(Process, TheStatusGrowsByTheSameForEachJob) {
  constexpr size_t kMostBytes = 2048;  // a job of one rank, or two
  constexpr size_t kJobs = 16;
  const DaemonProcess daemon;
  std::vector<std::unique_ptr<FakeJob>> jobs;
  std::vector<std::string> documents = {daemon.ask_status()};
  while (jobs.size() < kJobs) {
    jobs.push_back(must(FakeJob::start({.folder = daemon.folder(),
                                        .name = fmt::format("job-{:02}", jobs.size()),
                                        .model = model_of(1024, 1 + jobs.size() % 2)})));
    const auto shows_all = [&] {
      documents.resize(jobs.size());
      documents.push_back(daemon.ask_status());
      const auto all = nlohmann::json::parse(documents.back(), nullptr, false);
      return all.is_object() && all["jobs"].size() == jobs.size() &&
             all["jobs"].back()["state"] == "training";
    };
    ASSERT_TRUE(becomes_true(shows_all)) << documents.back();
    EXPECT_LT(documents.back().size() - documents[jobs.size() - 1].size(), kMostBytes);
    EXPECT_EQ(documents.back().find("\"sessions\""), std::string::npos) << documents.back();
  }
}

TEST(Process, ALockOfADeadOneIsNoObstacle) {
  const TemporaryFolder home;
  {
    DaemonProcess first({}, home.path());
    first.signal(SIGKILL);
    EXPECT_EQ(first.wait(), 128 + SIGKILL);
  }
  EXPECT_TRUE(std::filesystem::exists(home.path() + "/attach.sock"));  // SIGKILL leaves it
  DaemonProcess second({}, home.path());
  ASSERT_TRUE(second.running()) << second.log();
  start(second.folder());
}

// Then another one comes there: what it has made is not the first one's to delete.
TEST(Process, ADeletedFolderIsTheNextOnesAlone) {
  const TemporaryFolder home;
  const std::string path = home.path() + "/run";
  DaemonProcess first({}, path);
  ASSERT_TRUE(first.running()) << first.log();
  std::filesystem::remove_all(path);
  DaemonProcess second({}, path);
  ASSERT_TRUE(second.running()) << second.log();
  first.signal(SIGTERM);
  EXPECT_EQ(first.wait(), 0) << first.log();
  start(second.folder());
  EXPECT_NE(second.ask_status(), "");
}

// ulimit -f counts memory that is shared, too.
TEST(Process, ALimitOfFileSizesRefusesJobsAndKillsNobody) {
  DaemonProcess daemon({}, "", {"prlimit", "--fsize=1048576"});
  const Status large =
      FakeJob::start({.folder = daemon.folder(), .model = model_of(1 << 20)}).status();
  expect_refused(large, Code::kResourceExhausted, {"ulimit -f"});
  EXPECT_TRUE(daemon.running());
  EXPECT_TRUE(start(daemon.folder())->step(1).ok());
}

// Who asks its log where it is may work in another folder than it was started in.
TEST(Process, ARelativeFolderIsSaidAsAnAbsoluteOne) {
  const TemporaryFolder home;
  DaemonProcess daemon({}, "run", {"env", "--chdir=" + home.path()});
  ASSERT_TRUE(daemon.running()) << daemon.log();
  const std::string log = daemon.log(), key = " folder=";
  const size_t begin = log.find(key) + key.size();
  const std::string said = log.substr(begin, log.find(' ', begin) - begin);
  EXPECT_EQ(said, home.path() + "/run");
  EXPECT_TRUE(start({said})->step(1).ok());
}

TEST(Process, SocketsAreForTheUserAlone) {
  DaemonProcess daemon;
  for (const std::string& path : {daemon.folder().attach_socket(), daemon.folder().control_socket(),
                                  daemon.folder().status_socket(), daemon.folder().lock_file()}) {
    struct stat info {};
    ASSERT_EQ(::stat(path.c_str(), &info), 0) << path;
    EXPECT_EQ(info.st_mode & 0077, 0u) << path;
  }
}

// A supervisor; a terminal that closes; Ctrl-\\.
TEST(Process, ASignalLetsTheStepInHandFinishAndTellsTheRanks) {
  for (const int number : {SIGTERM, SIGHUP, SIGQUIT}) {
    SCOPED_TRACE(number);
    const FakeModel model = model_of(3 << 20, 2);  // whose step takes a while
    DaemonProcess daemon({"--workers", "1"});
    const auto job = start(daemon.folder(), model);
    job->post(1);
    ASSERT_TRUE(becomes_true([&] { return job->rank(0).header().committed_step.load() == 1; }));
    daemon.signal(number);
    for (auto& rank : job->ranks()) {
      expect_ended(*rank, Code::kUnavailable, daemon::kNoRank, "elixird was stopped");
      EXPECT_EQ(rank->header().finished_step.load(), 1u);
    }
    EXPECT_EQ(daemon.wait(), 0) << daemon.log();
    expect_no_sockets(daemon);
    Reference reference(model);
    reference.step(make_record(1, 2));
    EXPECT_TRUE(job->compare(reference).ok());
  }
}

// CPU ticks that each worker of elixird has used.
std::vector<uint64_t> ticks_of_threads(pid_t pid) {
  std::vector<uint64_t> ticks;
  for (const auto& entry : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", pid))) {
    std::ifstream file(entry.path() / "stat");
    std::string text{std::istreambuf_iterator<char>(file), {}};
    std::istringstream words(text.substr(text.rfind(')') + 2));
    std::string word;
    for (int field = 3; field < 14; ++field) words >> word;
    uint64_t user = 0;
    words >> user;
    ticks.push_back(user);
  }
  std::sort(ticks.rbegin(), ticks.rend());
  return ticks;
}

// A job's wish for one thread is for any one, not for the first.
TEST(Process, TwoJobsOfOneThreadEachUseTwoWorkers) {
  DaemonProcess daemon({"--workers", "2"});
  const FakeModel model = model_of(4 << 20);
  const std::vector<std::byte> grads = fake_gradient(model, 0, 0, 1);
  std::vector<std::unique_ptr<FakeJob>> jobs;
  for (const char* name : {"first", "second"}) {
    jobs.push_back(must(
        FakeJob::start({.folder = daemon.folder(), .name = name, .model = model, .workers = 1})));
  }
  // Of the two busiest threads the second has its share: at least a quarter of the first's.
  uint32_t step = 0;
  EXPECT_TRUE(becomes_true([&] {
    ++step;
    for (auto& job : jobs) {
      job->rank(0).write_grads(0, grads.data(), step);
      job->post(make_record(step, 1));
    }
    for (auto& job : jobs) EXPECT_TRUE(job->wait_finished(step).ok());
    const std::vector<uint64_t> ticks = ticks_of_threads(daemon.pid());
    return ticks[0] >= 20 && ticks[1] * 4 >= ticks[0];
  }));
}

TEST(Process, ExitsWhenIdleButNotWhileThereIsAJob) {
  EXPECT_TRUE(test::widen(0.2, [](double idle_s) {
    DaemonProcess daemon({"--exit-when-idle", std::to_string(idle_s)});
    auto job = FakeJob::start({.folder = daemon.folder(), .model = model_of(1024)});
    if (!job.ok()) return daemon.wait() != 0;  // it went before the job came
    // cannot fail by chance: with a job it is not idle, however long this takes.
    std::this_thread::sleep_for(std::chrono::duration<double>(2 * idle_s));
    EXPECT_TRUE(daemon.running());
    EXPECT_TRUE((*job)->step(1).ok());
    (*job)->detach();
    EXPECT_EQ(daemon.wait(), 0);
    return true;
  }));
}

// At a path, or under an abstract name.
TEST(Process, TellsTheSupervisor) {
  const TemporaryFolder home;
  for (const std::string& path : {home.path("notify"), "@" + home.path("notify")}) {
    const UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    if (path[0] == '@') address.sun_path[0] = '\0';
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
    ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
    const auto expect_told = [&](const std::string& text) {
      std::string told(64, '\0');
      const timeval deadline{static_cast<time_t>(test::kPatienceS), 0};
      ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof deadline);
      const ssize_t got = ::recv(socket.get(), told.data(), told.size(), 0);
      EXPECT_EQ(told.substr(0, static_cast<size_t>(std::max<ssize_t>(got, 0))), text);
    };
    ::setenv("NOTIFY_SOCKET", path.c_str(), 1);
    DaemonProcess daemon;
    ::unsetenv("NOTIFY_SOCKET");
    expect_told("READY=1");
    daemon.signal(SIGINT);
    expect_told("STOPPING=1");
    EXPECT_EQ(daemon.wait(), 0);
  }
}

// elixird looks into /proc now and then: the fewest of a while are those that stay.
size_t lasting_descriptors(pid_t pid) {
  size_t fewest = open_descriptors(pid);
  for (int i = 0; i < 20; ++i) {
    ::usleep(10'000);  // cannot fail by chance: more than stay only allow more afterwards
    fewest = std::min(fewest, open_descriptors(pid));
  }
  return fewest;
}

TEST(Process, LeavesNothingOfAJob) {
  DaemonProcess daemon;
  const size_t descriptors_before = lasting_descriptors(daemon.pid());
  for (int round = 0; round < 3; ++round) {
    auto job = start(daemon.folder(), model_of(4096, 3));
    ASSERT_TRUE(job->step(1).ok());
    EXPECT_EQ(mapped_memfds(daemon.pid()), 3u * 5u);
    EXPECT_GT(open_descriptors(daemon.pid()), descriptors_before);
    // Of each rank: five memfds, the attach socket, the ZeroMQ connection, and the descriptor of
    // the process. What hands its memory to others is closed once they have it.
    ASSERT_TRUE(
        becomes_true([&] { return open_descriptors(daemon.pid()) <= descriptors_before + 3 * 8; }));
    round == 0 ? job->detach() : job->rank(0).die();
    EXPECT_TRUE(becomes_true([&] { return mapped_memfds(daemon.pid()) == 0; }));
    job.reset();  // the trainers' ZeroMQ connections
    EXPECT_TRUE(becomes_true([&] { return open_descriptors(daemon.pid()) <= descriptors_before; }));
  }
}

TEST(Memory, AJobBeyondTheMachineIsRefusedBeforeAnythingIsTaken) {
  DaemonProcess daemon;
  const FakeModel model = make_model(ComputeType::kBf16, 2, 1 << 10, 1ull << 32);
  expect_refused(FakeJob::attach({.folder = daemon.folder(), .model = model}).status(),
                 Code::kResourceExhausted, {"needs", "TiB", "available", "memory_margin"});
  EXPECT_EQ(mapped_memfds(daemon.pid()), 0u);
}

TEST(Memory, TheLimitCountsAllRanksOfAllJobs) {
  const FakeModel model = model_of(1 << 20, 2);
  const uint64_t job_bytes = 2 * model.shape.session_bytes();
  DaemonProcess daemon({"--memory-limit", std::to_string(job_bytes * 3 / 2)});
  const auto first = start(daemon.folder(), model);
  const Status second =
      FakeJob::start({.folder = daemon.folder(), .name = "second", .model = model}).status();
  expect_refused(second, Code::kResourceExhausted, {"memory_limit"});
  // One that comes while another leaves waits for its memory.
  first->detach();
  const auto third =
      must(FakeJob::start({.folder = daemon.folder(), .name = "third", .model = model}));
  EXPECT_TRUE(third->step(1).ok());
}

// elixird keeps each with its name.
TEST(Memory, ManySmallParametersCount) {
  constexpr uint64_t kParameters = 10000, kKiB = 1024;
  FakeModel model = model_of(kParameters * shm::kAlignNumel, 1);
  model.places.clear();
  for (uint64_t i = 0; i < kParameters; ++i) {
    model.places.push_back({fmt::format("bias.{}", i), 0, i * shm::kAlignNumel, 1});
  }
  model.shape.n_parameters = kParameters;
  const auto attach_beside = [&](uint64_t bytes) {
    DaemonProcess daemon({"--memory-limit", std::to_string(model.shape.session_bytes() + bytes)});
    return FakeJob::attach({.folder = daemon.folder(), .model = model}).status();
  };
  EXPECT_TRUE(attach_beside(8192 * kKiB).ok());
  EXPECT_EQ(attach_beside(1536 * kKiB).code(), Code::kResourceExhausted);
}

TEST(Limits, SessionsAndJobs) {
  DaemonProcess daemon({"--max-sessions", "3", "--max-jobs", "2"});
  const auto ask = [&](const char* name, uint32_t ranks) {
    return FakeJob::start(
        {.folder = daemon.folder(), .name = name, .model = model_of(4096, ranks)});
  };
  const auto first = must(ask("first", 2));
  expect_refused(ask("second", 2).status(), Code::kResourceExhausted, {"max_sessions"});
  const auto second = must(ask("second", 1));
  expect_refused(ask("third", 1).status(), Code::kResourceExhausted, {"max_jobs"});
}

// For a rank that does not attach, one that does and never says hello, and a connection that asks
// for nothing.
TEST(Limits, TheTimeToAttach) {
  const FakeModel model = model_of(4096, 2);
  EXPECT_TRUE(test::widen(1, [&model](double window_s) {
    DaemonProcess daemon({"--attach-timeout-s", std::to_string(std::lround(window_s))});
    const auto attach = [&](const char* name, uint32_t rank) {
      const FakeJob job({.folder = daemon.folder(), .name = name, .model = model});
      return FakeTrainer::attach(job.options_of(rank));
    };
    const UniqueFd silent = must(shm::connect_attach(daemon.folder().attach_socket()));
    const auto alone = attach("alone", 0), first = attach("pair", 0), second = attach("pair", 1);
    if (!alone.ok() || !first.ok() || !second.ok()) return false;
    if (!(*first)->await_peers().ok() || !(*first)->hello().ok()) return false;
    for (const auto& waiting : {&alone, &first}) {
      expect_ended(***waiting, Code::kTimedOut, 1, "did not attach and say hello");
    }
    const shm::Packet packet = must(shm::receive_packet(silent.get(), FakeTrainer::kDeadlineMs));
    EXPECT_TRUE(shm::decode_message<shm::Refusal>(packet.bytes).ok());
    return true;
  }));
}

}  // namespace
}  // namespace elixir::testing
