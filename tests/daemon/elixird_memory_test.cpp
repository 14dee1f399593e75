// Where the memory of jobs lies, that it stays there, and that it is there at all: what elixird
// does and what its status says of it.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/processors.h"
#include "tests/daemon/daemon_process.h"
#include "tests/daemon/fake_job.h"
#include "tests/support/matchers.h"

namespace elixir::testing {
namespace {

constexpr uint64_t kOneMiB = 1 << 20, kMachineBytes = 1024 * kOneMiB;
using StatusJson = nlohmann::json;

FakeModel ranks_of(uint32_t ranks, uint64_t numel) {
  return make_model(ComputeType::kFp32, ranks, 1, numel);
}

// Ready to train; with elixird's log where it cannot be had.
std::unique_ptr<FakeJob> start(const DaemonProcess& daemon, uint32_t ranks = 2,
                               const std::string& name = "job", uint32_t workers = 0) {
  auto job = FakeJob::start({.folder = daemon.folder(),
                             .name = name,
                             .model = ranks_of(ranks, 64 * 1024),
                             .workers = workers});
  EXPECT_TRUE(job.ok()) << daemon.log();
  return must(std::move(job));
}

StatusJson status_of(const DaemonProcess& daemon, const std::string& job) {
  const StatusJson status = StatusJson::parse(daemon.ask_status());
  for (const StatusJson& entry : status["jobs"]) {
    if (entry["job"] == job) return entry;
  }
  return StatusJson();
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
    const auto job = start(daemon);
    const StatusJson status = status_of(daemon, "job");
    EXPECT_EQ(status["swapped_bytes"], 0) << status;
    EXPECT_TRUE(job->step(1).ok());
    if (!allowed) {
      EXPECT_LT(status["locked_bytes"], status["host_bytes"]);
      EXPECT_LE(locked_bytes(daemon.pid()), 65536u);
      continue;
    }
    if (!may_lock(status["host_bytes"])) GTEST_SKIP() << "the limit allows too little";
    EXPECT_EQ(status["locked_bytes"], status["host_bytes"]);
    EXPECT_GE(locked_bytes(daemon.pid()), status["host_bytes"]);
    // Sums that nobody declared come later, and are locked, too.
    job->publish(2, 1);
    for (auto& rank : job->ranks()) rank->request_sum(0);
    ASSERT_TRUE(job->wait_taken().ok());
    const StatusJson with_sums = status_of(daemon, "job");
    EXPECT_GT(with_sums["host_bytes"], status["host_bytes"]);
    EXPECT_EQ(with_sums["locked_bytes"], with_sums["host_bytes"]);
    job->detach();
    EXPECT_TRUE(becomes_true([&] { return mapped_memfds(daemon.pid()) == 0; }));
    EXPECT_EQ(locked_bytes(daemon.pid()), 0u);
  }
}

// ---- control groups ----

// Two jobs of one machine, in groups of version 2 that are files: each elixird admits what its own
// group has room for.
TEST_F(PlaceOfMemory, IsThatOfElixirdsOwnGroup) {
  constexpr uint64_t kNumel = 4 << 20;  // 64 MiB of states
  const std::string groups = home_.path("sys");
  if (::mkdir(groups.c_str(), 0700) != 0 || !may_show(groups, "/sys/fs/cgroup")) {
    GTEST_SKIP() << "no right to show it other control groups";
  }
  for (const bool large : {false, true}) {
    const std::string group = large ? "/jobs/large" : "/jobs/small";
    const uint64_t limit_bytes = large ? 2048ull << 20 : 300ull << 20;  // 256 MiB stay free
    home_.write("sys" + group + "/memory.max", std::to_string(limit_bytes) + "\n");
    home_.write("sys" + group + "/memory.current", "0\n");
    const std::string own = home_.write(group.substr(1) + "/self", "0::" + group + "\n");
    // Of the shell, which becomes elixird.
    const std::string show = "mount --bind " + groups + " /sys/fs/cgroup && mount --bind " + own +
                             " /proc/$$/cgroup && exec \"$@\"";
    const DaemonProcess daemon({}, "", {"unshare", "--mount", "sh", "-c", show, "sh"});
    const auto status = nlohmann::json::parse(daemon.ask_status());
    EXPECT_EQ(status["daemon"]["memory_group"], group);
    const auto job = FakeJob::start(
        {.folder = daemon.folder(), .model = make_model(ComputeType::kFp32, 1, 1, kNumel)});
    if (large) {
      EXPECT_TRUE(job.ok()) << job.status().message();
    } else {
      test::expect_refused(job.status(), Code::kResourceExhausted,
                           {"memory.max of cgroup /jobs/small"});
    }
  }
}

// ---- nodes ----

// Two nodes, each with one of this machine's processors. The second has no memory, so that what is
// to lie there does not.
class TwoNodes : public PlaceOfMemory {
 protected:
  void SetUp() override {
    const std::string real = kNodes;
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
  static constexpr const char* kNodes = "/sys/devices/system/node";
};

// Each rank's states lie where those threads run that its job may have; or elixird says that they
// do not.
TEST_F(TwoNodes, RanksLieWhereTheirJobHasThreads) {
  DaemonProcess daemon({"--workers", "2"}, "", that_sees(home_.path(), kNodes));
  const StatusJson threads = StatusJson::parse(daemon.ask_status())["daemon"]["threads_by_node"];
  ASSERT_EQ(threads, (StatusJson{{"0", 1}, {"1", 1}}));
  for (const uint32_t workers : {1u, 0u}) {
    const auto job = start(daemon, 2, "of-" + std::to_string(workers), workers);
    const StatusJson status = status_of(daemon, job->options().name);
    EXPECT_EQ(status["numa_nodes"], workers == 1 ? StatusJson({0, 0}) : StatusJson({0, 1}))
        << status;
    EXPECT_TRUE(job->step(1).ok());
    if (status["off_node_bytes"].is_null()) continue;  // the system tells no page's node
    // All of rank 1's where it is to lie on node 1, which has no memory.
    const double off_node_bytes = workers == 1 ? 0 : status["host_bytes"].get<double>() / 2;
    EXPECT_NEAR(status["off_node_bytes"].get<double>(), off_node_bytes, off_node_bytes * 0.01);
    const std::string line = "event=off_node job='" + job->options().name + "' rank=";
    EXPECT_EQ(daemon.log().find(line + "0"), std::string::npos);
    EXPECT_EQ(daemon.log().find(line + "1 node=1") != std::string::npos, workers == 0);
  }
}

// ---- memory that others have taken since the job was admitted ----

// A job is admitted as a whole at its first rank. Before the second one comes there is less.
TEST_F(PlaceOfMemory, IsFilledOnlyWhileTheMachineHasIt) {
  const auto show_free = [&](uint64_t bytes) {
    return home_.write("meminfo", fmt::format("MemTotal: {} kB\nMemAvailable: {} kB\n"
                                              "SwapTotal: 0 kB\nSwapFree: 0 kB\n",
                                              kMachineBytes / 1024, bytes / 1024));
  };
  const std::string shown = show_free(kMachineBytes);
  if (!may_show(shown, "/proc/meminfo")) GTEST_SKIP() << "no right to show it";
  DaemonProcess daemon({"--memory-margin", "256MiB"}, "", that_sees(shown, "/proc/meminfo"));
  const FakeJob job({.folder = daemon.folder(), .model = ranks_of(2, 64 * 1024)});
  const auto first = must(FakeTrainer::attach(job.options_of(0)));
  show_free(100 * kOneMiB);
  expect_refused(FakeTrainer::attach(job.options_of(1)).status(), Code::kResourceExhausted,
                 {"have taken memory", "MemAvailable", "memory_margin"});
  // elixird has given back what the job had, and serves others.
  EXPECT_TRUE(becomes_true([&] { return mapped_memfds(daemon.pid()) == 0; }));
  show_free(kMachineBytes);
  EXPECT_TRUE(start(daemon)->step(1).ok());
}

}  // namespace
}  // namespace elixir::testing
