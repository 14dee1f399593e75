// The life of the process, and its limits.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>
#include <thread>

#include "shm/futex.h"
#include "tests/daemon/daemon_process.h"
#include "tests/daemon/fake_job.h"
#include "tests/support/sanitized.h"

namespace elixir::testing {
namespace {

FakeModel model_of(uint64_t numel, uint32_t ranks = 1) {
  return make_model(ComputeType::kFp32, ranks, 1, numel / 128 * 128);
}

TEST(Process, ASecondOneIsRefusedWithThePidOfTheFirst) {
  DaemonProcess first;
  DaemonProcess second({}, first.folder().path);
  EXPECT_EQ(second.wait(), static_cast<int>(Code::kAlreadyRunning));
  EXPECT_NE(second.log().find(fmt::format("pid {}", first.pid())), std::string::npos)
      << second.log();
  // It took nothing from the first.
  auto job = FakeJob::start({.folder = first.folder(), .model = model_of(1024)});
  ASSERT_TRUE(job.ok()) << job.status().message();
  EXPECT_TRUE((*job)->step(1).ok());
  EXPECT_NE(first.ask_status(), "");
  (*job)->detach();
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
  EXPECT_TRUE(FakeJob::start({.folder = second.folder(), .model = model_of(1024)}).ok());
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
  EXPECT_TRUE(FakeJob::start({.folder = second.folder(), .model = model_of(1024)}).ok());
  EXPECT_NE(second.ask_status(), "");
}

// ulimit -f counts memory that is shared, too.
TEST(Process, ALimitOfFileSizesRefusesJobsAndKillsNobody) {
  DaemonProcess daemon({}, "", {"prlimit", "--fsize=1048576"});
  const auto large = FakeJob::start({.folder = daemon.folder(), .model = model_of(1 << 20)});
  ASSERT_FALSE(large.ok());
  EXPECT_EQ(large.status().code(), Code::kResourceExhausted);
  EXPECT_NE(large.status().message().find("ulimit -f"), std::string::npos)
      << large.status().message();
  EXPECT_TRUE(daemon.running());
  auto small = FakeJob::start({.folder = daemon.folder(), .model = model_of(1024)});
  ASSERT_TRUE(small.ok()) << small.status().message();
  EXPECT_TRUE((*small)->step(1).ok());
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
  auto job = FakeJob::start({.folder = {said}, .model = model_of(4096, 1)});
  ASSERT_TRUE(job.ok()) << job.status().message();
  EXPECT_TRUE((*job)->step(1).ok());
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

TEST(Process, SigtermFinishesTheStepInHandAndTellsTheRanks) {
  const FakeModel model = model_of((kSanitized ? 3 : 24) << 20, 2);  // whose step takes a while
  DaemonProcess daemon({"--workers", "1"});
  auto job = FakeJob::start({.folder = daemon.folder(), .model = model});
  ASSERT_TRUE(job.ok()) << job.status().message();
  (*job)->post(1);
  ASSERT_TRUE(becomes_true([&] { return (*job)->rank(0).header().committed_step.load() == 1; }));
  daemon.signal(SIGTERM);
  for (auto& rank : (*job)->ranks()) {
    const auto fault = rank->wait_session_fault();
    ASSERT_TRUE(fault.ok()) << fault.status().message();
    EXPECT_EQ(fault->code, static_cast<uint32_t>(Code::kUnavailable));
    EXPECT_NE(std::string(shm::get_text(fault->text)).find("elixird was stopped"),
              std::string::npos);
    EXPECT_EQ(rank->header().finished_step.load(), 1u);
  }
  EXPECT_EQ(daemon.wait(), 0) << daemon.log();
  Reference reference(model);
  reference.step(make_record(1, 2));
  EXPECT_TRUE((*job)->compare(reference).ok());
  for (const auto& entry : std::filesystem::directory_iterator(daemon.folder().path)) {
    EXPECT_FALSE(entry.is_socket()) << entry.path();
  }
}

// A terminal that closes, and Ctrl-\\.
TEST(Process, HangupAndQuitEndItAsSigtermDoes) {
  for (const int number : {SIGHUP, SIGQUIT}) {
    DaemonProcess daemon;
    auto job = FakeJob::start({.folder = daemon.folder(), .model = model_of(1024)});
    ASSERT_TRUE(job.ok()) << job.status().message();
    daemon.signal(number);
    const auto fault = (*job)->rank(0).wait_session_fault();
    ASSERT_TRUE(fault.ok()) << fault.status().message();
    EXPECT_EQ(fault->code, static_cast<uint32_t>(Code::kUnavailable));
    EXPECT_EQ(daemon.wait(), 0) << daemon.log();
    for (const auto& entry : std::filesystem::directory_iterator(daemon.folder().path)) {
      EXPECT_FALSE(entry.is_socket()) << entry.path();
    }
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
  std::vector<std::unique_ptr<FakeJob>> jobs;
  for (const char* name : {"first", "second"}) {
    auto job =
        FakeJob::start({.folder = daemon.folder(), .name = name, .model = model, .workers = 1});
    ASSERT_TRUE(job.ok()) << job.status().message();
    jobs.push_back(std::move(*job));
  }
  // Of the two busiest threads the second has its share: at least a quarter of the first's.
  uint32_t step = 0;
  EXPECT_TRUE(becomes_true([&] {
    ++step;
    for (auto& job : jobs) job->post(step);
    for (auto& job : jobs) EXPECT_TRUE(job->wait_finished(step).ok());
    const std::vector<uint64_t> ticks = ticks_of_threads(daemon.pid());
    return ticks[0] >= 20 && ticks[1] * 4 >= ticks[0];
  }));
}

// `attempt` with a window of so many seconds, wider until what belongs within it came in time: on a
// busy machine no window is wide enough for sure.
void widen(const std::function<bool(int window_s)>& attempt) {
  for (int window_s = 1; !attempt(window_s); window_s *= 3) {
    ASSERT_LT(window_s, 20) << "never in time";
  }
}

TEST(Process, ExitsWhenIdleButNotWhileThereIsAJob) {
  widen([](int idle_s) {
    DaemonProcess daemon({"--exit-when-idle", std::to_string(idle_s)});
    auto job = FakeJob::start({.folder = daemon.folder(), .model = model_of(1024)});
    if (!job.ok()) return daemon.wait() != 0;  // it went before the job came
    std::this_thread::sleep_for(std::chrono::seconds(2 * idle_s));
    EXPECT_TRUE(daemon.running());
    EXPECT_TRUE((*job)->step(1).ok());
    (*job)->detach();
    EXPECT_EQ(daemon.wait(), 0);
    return true;
  });
}

TEST(Process, TellsTheSupervisor) {
  for (const std::string& path : {std::string("/tmp/elixir-notify-") + std::to_string(::getpid()),
                                  std::string("@elixir-notify-") + std::to_string(::getpid())}) {
    const UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    if (path[0] == '@') address.sun_path[0] = '\0';
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
    ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
    timeval deadline{20, 0};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof deadline);
    ::setenv("NOTIFY_SOCKET", path.c_str(), 1);
    DaemonProcess daemon;
    ::unsetenv("NOTIFY_SOCKET");
    char text[64] = {};
    ASSERT_GT(::recv(socket.get(), text, sizeof text - 1, 0), 0);
    EXPECT_STREQ(text, "READY=1");
    daemon.signal(SIGINT);
    std::memset(text, 0, sizeof text);
    ASSERT_GT(::recv(socket.get(), text, sizeof text - 1, 0), 0);
    EXPECT_STREQ(text, "STOPPING=1");
    EXPECT_EQ(daemon.wait(), 0);
    if (path[0] == '/') ::unlink(path.c_str());
  }
}

// elixird looks into /proc now and then: the fewest of a while are those that stay.
size_t lasting_descriptors(pid_t pid) {
  size_t fewest = open_descriptors(pid);
  for (int i = 0; i < 20; ++i) {
    ::usleep(10'000);
    fewest = std::min(fewest, open_descriptors(pid));
  }
  return fewest;
}

TEST(Process, LeavesNothingOfAJob) {
  DaemonProcess daemon;
  const size_t descriptors_before = lasting_descriptors(daemon.pid());
  for (int round = 0; round < 3; ++round) {
    auto job = FakeJob::start({.folder = daemon.folder(), .model = model_of(4096, 3)});
    ASSERT_TRUE(job.ok()) << job.status().message();
    ASSERT_TRUE((*job)->step(1).ok());
    EXPECT_EQ(mapped_memfds(daemon.pid()), 3u * 5u);
    EXPECT_GT(open_descriptors(daemon.pid()), descriptors_before);
    round == 0 ? (*job)->detach() : (*job)->rank(0).die();
    EXPECT_TRUE(becomes_true([&] { return mapped_memfds(daemon.pid()) == 0; }));
    job->reset();  // the trainers' ZeroMQ connections
    EXPECT_TRUE(becomes_true([&] { return open_descriptors(daemon.pid()) == descriptors_before; }));
  }
}

TEST(Memory, AJobBeyondTheMachineIsRefusedBeforeAnythingIsTaken) {
  DaemonProcess daemon;
  const FakeModel model = make_model(ComputeType::kBf16, 2, 1 << 10, 1ull << 32);
  auto trainer = FakeTrainer::attach(
      {.folder = daemon.folder(), .job = "huge", .shape = model.shape, .places = model.places});
  EXPECT_EQ(trainer.status().code(), Code::kResourceExhausted);
  for (const char* part : {"needs", "TiB", "available", "memory_margin"}) {
    EXPECT_NE(trainer.status().message().find(part), std::string::npos)
        << trainer.status().message();
  }
  EXPECT_EQ(mapped_memfds(daemon.pid()), 0u);
}

TEST(Memory, TheLimitCountsAllRanksOfAllJobs) {
  const FakeModel model = model_of(1 << 20, 2);
  const uint64_t job_bytes = 2 * model.shape.session_bytes();
  DaemonProcess daemon({"--memory-limit", std::to_string(job_bytes * 3 / 2)});
  auto first = FakeJob::start({.folder = daemon.folder(), .name = "first", .model = model});
  ASSERT_TRUE(first.ok()) << first.status().message();
  auto second = FakeJob::start({.folder = daemon.folder(), .name = "second", .model = model});
  EXPECT_EQ(second.status().code(), Code::kResourceExhausted);
  EXPECT_NE(second.status().message().find("memory_limit"), std::string::npos)
      << second.status().message();
  // One that comes while another leaves waits for its memory.
  (*first)->detach();
  auto third = FakeJob::start({.folder = daemon.folder(), .name = "third", .model = model});
  ASSERT_TRUE(third.ok()) << third.status().message();
  EXPECT_TRUE((*third)->step(1).ok());
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
    return FakeTrainer::attach(
               {.folder = daemon.folder(), .shape = model.shape, .places = model.places})
        .status();
  };
  EXPECT_TRUE(attach_beside(8192 * kKiB).ok());
  EXPECT_EQ(attach_beside(1536 * kKiB).code(), Code::kResourceExhausted);
}

TEST(Limits, SessionsAndJobs) {
  DaemonProcess daemon({"--max-sessions", "3", "--max-jobs", "2"});
  const auto start = [&](const char* name, uint32_t ranks) {
    return FakeJob::start(
        {.folder = daemon.folder(), .name = name, .model = model_of(4096, ranks)});
  };
  auto first = start("first", 2);
  ASSERT_TRUE(first.ok());
  auto second = start("second", 2);
  EXPECT_EQ(second.status().code(), Code::kResourceExhausted);
  EXPECT_NE(second.status().message().find("max_sessions"), std::string::npos);
  second = start("second", 1);
  ASSERT_TRUE(second.ok());
  auto third = start("third", 1);
  EXPECT_EQ(third.status().code(), Code::kResourceExhausted);
  EXPECT_NE(third.status().message().find("max_jobs"), std::string::npos);
}

// What ends a rank whose peer does not come.
void expect_rank_1_too_late(FakeTrainer& waiting) {
  const auto fault = waiting.wait_session_fault();
  ASSERT_TRUE(fault.ok()) << fault.status().message();
  EXPECT_EQ(fault->code, static_cast<uint32_t>(Code::kTimedOut));
  EXPECT_EQ(fault->rank, 1u);
}

TEST(Limits, TheTimeToAttach) {
  const FakeModel model = model_of(4096, 2);
  widen([&model](int window_s) {
    DaemonProcess daemon({"--attach-timeout-s", std::to_string(window_s)});
    FakeTrainer::Options options{
        .folder = daemon.folder(), .shape = model.shape, .places = model.places};
    auto alone = FakeTrainer::attach(options);
    if (!alone.ok()) return false;
    expect_rank_1_too_late(**alone);
    // All attach, one never says hello.
    auto first = FakeTrainer::attach(options);
    options.rank = 1;
    auto second = FakeTrainer::attach(options);
    if (!first.ok() || !second.ok() || !(*first)->await_peers().ok()) return false;
    if (!(*first)->hello().ok()) return false;
    expect_rank_1_too_late(**first);
    return true;
  });
}

TEST(Limits, TheTimeOfAConnectionThatAsksForNothing) {
  DaemonProcess daemon({"--attach-timeout-s", "1"});
  const Result<UniqueFd> silent = shm::connect_attach(daemon.folder().attach_socket());
  const auto packet = shm::receive_packet(silent->get(), FakeTrainer::kDeadlineMs);
  ASSERT_TRUE(packet.ok()) << packet.status().message();
  EXPECT_TRUE(shm::decode_message<shm::Refusal>(packet->bytes).ok());
}

}  // namespace
}  // namespace elixir::testing
