// Where the memory of jobs lies, that it stays there, and that it is there at all: what elixird
// does and what its status says of it.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/processors.h"
#include "tests/daemon/daemon_process.h"
#include "tests/daemon/fake_job.h"

namespace elixir::testing {
namespace {

constexpr uint64_t kOneMiB = 1 << 20;
using StatusJson = nlohmann::json;

FakeModel ranks_of(uint32_t ranks, uint64_t numel) {
  return make_model(ComputeType::kFp32, ranks, 1, numel);
}

StatusJson status_of(const DaemonProcess& daemon, const std::string& job) {
  const StatusJson status = StatusJson::parse(daemon.ask_status());
  for (const StatusJson& entry : status["jobs"]) {
    if (entry["job"] == job) return entry;
  }
  return StatusJson();
}

uint64_t number_of(const std::string& path, const std::string& wanted) {
  std::ifstream file(path);
  uint64_t number = 0;
  for (std::string word; file >> word;) {
    if (word == wanted) file >> number;
  }
  return number;
}

uint64_t locked_by(pid_t pid) {
  return number_of("/proc/" + std::to_string(pid) + "/status", "VmLck:") * 1024;
}

bool may_lock(uint64_t bytes) {
  void* const pages =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const bool locked = ::mlock2(pages, bytes, MLOCK_ONFAULT) == 0;
  ::munmap(pages, bytes);
  return locked;
}

class PlaceOfMemory : public ::testing::Test {
 protected:
  // What becomes a program that sees the file or folder `shown` in place of `path`.
  static std::vector<std::string> that_sees(const std::string& shown, const std::string& path) {
    return {
        "unshare", "--mount", "sh", "-c", "mount --bind " + shown + " " + path + " && exec \"$@\"",
        "sh"};
  }
  static bool may_show(const std::string& shown, const std::string& path) {
    return ::geteuid() == 0 &&
           std::system(
               ("unshare --mount mount --bind " + shown + " " + path + " 2>/dev/null").c_str()) ==
               0;
  }
  const TemporaryFolder home_;
};

// ---- swap ----

TEST_F(PlaceOfMemory, IsLockedWhereTheLimitAllowsIt) {
  // Root passes the limit by right.
  std::vector<std::string> limited = {"prlimit", "--memlock=65536"};
  if (::geteuid() == 0) {
    limited.insert(limited.end(), {"setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"});
  }
  for (const bool allowed : {false, true}) {
    DaemonProcess daemon({}, "", allowed ? std::vector<std::string>() : limited);
    ASSERT_TRUE(daemon.running()) << daemon.log();
    auto job = FakeJob::start({.folder = daemon.folder(), .model = ranks_of(2, 64 * 1024)});
    ASSERT_TRUE(job.ok()) << job.status().message();
    const StatusJson status = status_of(daemon, "job");
    EXPECT_EQ(status["swapped_bytes"], 0) << status;
    EXPECT_TRUE((*job)->step(1).ok());
    if (!allowed) {
      EXPECT_LT(status["locked_bytes"], status["host_bytes"]);
      EXPECT_LE(locked_by(daemon.pid()), 65536u);
      continue;
    }
    if (!may_lock(status["host_bytes"])) GTEST_SKIP() << "the limit allows too little";
    EXPECT_EQ(status["locked_bytes"], status["host_bytes"]);
    EXPECT_GE(locked_by(daemon.pid()), status["host_bytes"]);
    (*job)->detach();
    EXPECT_TRUE(becomes_true([&] { return mapped_memfds(daemon.pid()) == 0; }));
    EXPECT_EQ(locked_by(daemon.pid()), 0u);
  }
}

// Sums that nobody declared come later.
TEST_F(PlaceOfMemory, SumsThatComeLaterAreLockedToo) {
  DaemonProcess daemon;
  auto job = FakeJob::start({.folder = daemon.folder(), .model = ranks_of(1, 64 * 1024)});
  ASSERT_TRUE(job.ok()) << job.status().message();
  const StatusJson before = status_of(daemon, "job");
  if (before["locked_bytes"] != before["host_bytes"]) GTEST_SKIP() << "not all may be locked";
  (*job)->publish(1, 1);
  (*job)->rank(0).request_sum(0);
  ASSERT_TRUE((*job)->wait_taken().ok());
  const StatusJson status = status_of(daemon, "job");
  EXPECT_GT(status["host_bytes"], before["host_bytes"]);
  EXPECT_EQ(status["locked_bytes"], status["host_bytes"]);
}

// ---- nodes ----

// Two nodes, each with one of this machine's processors. The second has no memory, so that what is
// to lie there does not.
class TwoNodes : public PlaceOfMemory {
 protected:
  void SetUp() override {
    const std::string real = "/sys/devices/system/node";
    const std::vector<int> usable = usable_processors();  // a control group may leave some out
    for (const int processor : {0, 1}) {
      if (std::find(usable.begin(), usable.end(), processor) == usable.end()) {
        GTEST_SKIP() << "processor " << processor << " may not be used";
      }
    }
    if (!std::filesystem::exists(real + "/node0") || std::filesystem::exists(real + "/node1")) {
      GTEST_SKIP() << "not a machine of one node";
    }
    for (int node = 0; node < 2; ++node) {
      const std::string folder = "node" + std::to_string(node) + "/";
      home_.write(folder + "cpumap", std::to_string(1 << node) + "\n");
      home_.write(folder + "cpulist", std::to_string(node) + "\n");
      home_.write(folder + "distance", node == 0 ? "10 20\n" : "20 10\n");
      home_.write(folder + "meminfo", "Node " + std::to_string(node) + " MemTotal: 1048576 kB\n");
    }
    for (const char* list : {"online", "possible", "has_memory", "has_cpu"}) {
      home_.write(list, "0-1\n");
    }
    if (!may_show(home_.path(), real)) GTEST_SKIP() << "no right to show other nodes";
  }
  std::vector<std::string> as_shown() const {
    return that_sees(home_.path(), "/sys/devices/system/node");
  }
};

// Each rank's states lie where those threads run that its job may have.
TEST_F(TwoNodes, RanksLieWhereTheirJobHasThreads) {
  DaemonProcess daemon({"--workers", "2"}, "", as_shown());
  ASSERT_TRUE(daemon.running()) << daemon.log();
  const StatusJson threads = StatusJson::parse(daemon.ask_status())["daemon"]["threads_by_node"];
  ASSERT_EQ(threads, (StatusJson{{"0", 1}, {"1", 1}}));
  for (const uint32_t workers : {0u, 1u}) {
    const std::string name = "of-" + std::to_string(workers);
    auto job = FakeJob::start({.folder = daemon.folder(),
                               .name = name,
                               .model = ranks_of(2, 64 * 1024),
                               .workers = workers});
    ASSERT_TRUE(job.ok()) << job.status().message();
    const StatusJson status = status_of(daemon, name);
    EXPECT_EQ(status["numa_nodes"], workers == 1 ? StatusJson({0, 0}) : StatusJson({0, 1}))
        << status;
    EXPECT_TRUE((*job)->step(1).ok());
  }
}

TEST_F(TwoNodes, WhatLiesElsewhereIsTold) {
  DaemonProcess daemon({"--workers", "2"}, "", as_shown());
  ASSERT_TRUE(daemon.running()) << daemon.log();
  auto job = FakeJob::start({.folder = daemon.folder(), .model = ranks_of(2, 64 * 1024)});
  ASSERT_TRUE(job.ok()) << job.status().message();
  const StatusJson status = status_of(daemon, "job");
  if (status["off_node_bytes"].is_null()) GTEST_SKIP() << "the system tells no page's node";
  // All of rank 1's: node 1 has no memory.
  const uint64_t half = status["host_bytes"].get<uint64_t>() / 2;
  EXPECT_NEAR(status["off_node_bytes"].get<double>(), static_cast<double>(half), half * 0.01);
  EXPECT_NE(daemon.log().find("event=off_node job='job' rank=1 node=1"), std::string::npos)
      << daemon.log();
  EXPECT_EQ(daemon.log().find("event=off_node job='job' rank=0"), std::string::npos);
}

// ---- two elixirds ----

// A machine's memory as two elixirds see it: what there is, less what both have filled. Each reads
// a FIFO in place of /proc/meminfo, so that the number is as young as the question, however busy
// this machine is. Neither is told before both have admitted their job: until then nothing is
// filled.
class SharedMachine {
 public:
  explicit SharedMachine(const TemporaryFolder& home) {
    for (size_t i = 0; i < 2; ++i) {
      paths_.push_back(home.path() + "/meminfo" + std::to_string(i));
      made_ = made_ && ::mkfifo(paths_.back().c_str(), 0600) == 0;
    }
  }
  ~SharedMachine() {
    over_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

  const std::string& path(size_t i) const { return paths_[i]; }
  bool made() const { return made_; }
  void start_elixird(const std::vector<std::string>& prefix) {
    const size_t i = daemons_.size();
    threads_.emplace_back([this, i] { answer(i); });
    daemons_.push_back(std::make_unique<DaemonProcess>(
        std::vector<std::string>{"--workers", "1", "--memory-margin", "256MiB"}, "", prefix));
    if (daemons_.size() == 2) started_ = true;
  }
  const std::vector<std::unique_ptr<DaemonProcess>>& daemons() const { return daemons_; }
  // By both. REQUIRES: both have been started.
  uint64_t filled_bytes() const {
    uint64_t bytes = 0;
    for (const auto& daemon : daemons_) {
      bytes += number_of("/proc/" + std::to_string(daemon->pid()) + "/status", "RssShmem:") * 1024;
    }
    return bytes;
  }
  uint64_t most_bytes() const { return std::max(most_bytes_.load(), filled_bytes()); }
  static constexpr uint64_t kMachineBytes = 800 * kOneMiB;

 private:
  bool admitted(size_t i) const {
    return daemons_[i]->log().find("event=attach") != std::string::npos;
  }

  bool is_read(size_t i) const {
    return UniqueFd(::open(paths_[i].c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC)).valid();
  }

  // Whoever opens elixird i's file.
  void answer(size_t i) {
    sigset_t broken_pipe;
    sigemptyset(&broken_pipe);
    sigaddset(&broken_pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
    while (!over_.load()) {
      UniqueFd reader(::open(paths_[i].c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
      if (!reader.valid()) {  // nobody reads
        ::usleep(500);
        continue;
      }
      uint64_t filled = 0;
      if (started_.load() && admitted(i)) {
        while (!over_.load() && !admitted(1 - i)) ::usleep(500);
        filled = over_.load() ? 0 : filled_bytes();
      }
      most_bytes_ = std::max(most_bytes_.load(), filled);
      const std::string text = fmt::format(
          "MemTotal: {} kB\nMemAvailable: {} kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n",
          kMachineBytes / 1024, (kMachineBytes - std::min(kMachineBytes, filled)) / 1024);
      EXPECT_EQ(::write(reader.get(), text.data(), text.size()), std::ssize(text));
      // One answer for each: the next one comes when this one has gone.
      reader.reset();
      while (is_read(i) && !over_.load()) ::usleep(500);
    }
  }

  std::vector<std::string> paths_;
  bool made_ = true;
  std::atomic<bool> started_{false}, over_{false};  // daemons_ is complete; is going
  std::atomic<uint64_t> most_bytes_{0};
  std::vector<std::unique_ptr<DaemonProcess>> daemons_;
  std::vector<std::thread> threads_;
};

// Both look at the machine before either has filled anything, so both admit their job.
TEST_F(PlaceOfMemory, TwoElixirdsNeverFillMoreThanTheMachineHas) {
  SharedMachine machine(home_);
  ASSERT_TRUE(machine.made());
  const FakeModel large = ranks_of(1, 450 * kOneMiB / 16);
  ASSERT_GT(2 * large.shape.session_bytes(), SharedMachine::kMachineBytes);
  for (size_t i = 0; i < 2; ++i) {
    if (!may_show(machine.path(i), "/proc/meminfo")) GTEST_SKIP() << "no right to show it";
    machine.start_elixird(that_sees(machine.path(i), "/proc/meminfo"));
    ASSERT_TRUE(machine.daemons()[i]->running()) << machine.daemons()[i]->log();
  }
  // One that has its memory keeps it until the other one knows.
  std::vector<std::future<Result<std::unique_ptr<FakeJob>>>> attaching;
  for (const auto& daemon : machine.daemons()) {
    attaching.push_back(std::async(std::launch::async, [&large, folder = daemon->folder()] {
      return FakeJob::attach({.folder = folder, .name = "large", .model = large});
    }));
  }
  std::vector<Result<std::unique_ptr<FakeJob>>> jobs;
  for (auto& job : attaching) jobs.push_back(job.get());
  int failed = 0;
  for (const auto& job : jobs) {
    const Status status = job.status();
    if (status.ok()) continue;
    ++failed;
    EXPECT_EQ(status.code(), Code::kResourceExhausted) << status.message();
    for (const char* part : {"have taken memory meanwhile", "MemAvailable", "memory_margin"}) {
      EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    }
  }
  EXPECT_GE(failed, 1);
  EXPECT_LT(machine.most_bytes(), SharedMachine::kMachineBytes);
  jobs.clear();
  // Whoever gave up has given back what it had, and serves.
  for (const auto& daemon : machine.daemons()) {
    EXPECT_TRUE(becomes_true([&] {
      auto small = FakeJob::start({.folder = daemon->folder(), .model = ranks_of(1, 4096)});
      return small.ok() && (*small)->step(1).ok();
    })) << daemon->log();
  }
}

}  // namespace
}  // namespace elixir::testing
