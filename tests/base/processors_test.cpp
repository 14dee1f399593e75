#include "base/processors.h"

#include <gtest/gtest.h>

#include "tests/support/temporary_folder.h"

namespace elixir {
namespace {

void write_cache(const TemporaryFolder& root, int processor, int index, const std::string& level,
                 const std::string& size, const std::string& sharers) {
  const std::string cache = "sys/devices/system/cpu/cpu" + std::to_string(processor) +
                            "/cache/index" + std::to_string(index) + "/";
  root.write(cache + "level", level + "\n");
  root.write(cache + "size", size + "\n");
  root.write(cache + "shared_cpu_list", sharers + "\n");
}

TEST(Processors, CachesOfTheLastLevelCountOnceEach) {
  const TemporaryFolder root;
  for (int processor = 0; processor < 4; ++processor) {
    write_cache(root, processor, 0, "1", "32K", std::to_string(processor));
    write_cache(root, processor, 1, "2", "1024K", std::to_string(processor));
    write_cache(root, processor, 2, "3", "16384K", processor < 2 ? "0-1" : "2-3");
  }
  EXPECT_EQ(last_level_cache_bytes({0, 1, 2, 3}, root.path()), uint64_t{32} << 20);
  EXPECT_EQ(last_level_cache_bytes({1}, root.path()), uint64_t{16} << 20);
  EXPECT_EQ(last_level_cache_bytes({9}, root.path()), 0u);
  // Small cores without a third level beside others.
  write_cache(root, 9, 0, "2", "2048K", "9");
  EXPECT_EQ(last_level_cache_bytes({9}, root.path()), uint64_t{2} << 20);
  EXPECT_EQ(last_level_cache_bytes({9, 0}, root.path()), uint64_t{16} << 20);
  EXPECT_EQ(last_level_cache_bytes({0, 9}, root.path()), uint64_t{16} << 20);
}

TEST(Processors, NumaNodesAreThoseOfTheProcessors) {
  const TemporaryFolder root;
  for (int processor = 0; processor < 4; ++processor) {
    const std::string folder = "sys/devices/system/cpu/cpu" + std::to_string(processor) + "/";
    root.write(folder + "node" + std::to_string(processor / 2) + "/x", "");
    root.write(folder + "node_of_nobody", "");
  }
  EXPECT_EQ(numa_nodes_of({0, 1, 2, 3}, root.path()), 2u);
  EXPECT_EQ(numa_nodes_of({2, 3}, root.path()), 1u);
  EXPECT_EQ(numa_nodes_of({9}, root.path()), 1u);
}

TEST(Processors, TheirNameIsTheFirstThatTheSystemTells) {
  const TemporaryFolder root;
  EXPECT_EQ(processor_name(root.path()), "");
  root.write("proc/cpuinfo",
             "processor\t: 0\nmodel name\t: Some Processor @ 3 GHz\n\nprocessor\t: 1\n"
             "model name\t: Another\n");
  EXPECT_EQ(processor_name(root.path()), "Some Processor @ 3 GHz");
  root.write("proc/cpuinfo", "processor\t: 0\nCPU part\t: 0xd40\n");  // ARM
  EXPECT_EQ(processor_name(root.path()), "0xd40");
}

TEST(Processors, OfThisMachine) {
  EXPECT_GE(numa_nodes_of(usable_processors()), 1u);
  EXPECT_LT(last_level_cache_bytes(usable_processors()), uint64_t{1} << 40);
}

constexpr char kGroups[] = "5:cpu,cpuacct:/jobs/a\n4:memory:/m\n0::/user/b\n";

TEST(Processors, TheLeastQuotaOfTheGroupAndItsParentsCounts) {
  const TemporaryFolder root;
  EXPECT_FALSE(processor_quota(root.path()));
  EXPECT_EQ(parallel_threads(root.path()), usable_processors().size());
  root.write("proc/self/cgroup", kGroups);
  root.write("sys/fs/cgroup/user/b/cpu.max", "max 100000\n");
  EXPECT_FALSE(processor_quota(root.path()));
  root.write("sys/fs/cgroup/cpu.max", "150000 100000\n");
  ASSERT_TRUE(processor_quota(root.path()));
  EXPECT_DOUBLE_EQ(processor_quota(root.path())->processors, 1.5);
  EXPECT_EQ(processor_quota(root.path())->limit, "cpu.max of cgroup /");
  root.write("sys/fs/cgroup/user/b/cpu.max", "50000 100000\n");
  EXPECT_DOUBLE_EQ(processor_quota(root.path())->processors, 0.5);
  EXPECT_EQ(processor_quota(root.path())->limit, "cpu.max of cgroup /user/b");
  EXPECT_EQ(parallel_threads(root.path()), 1u);
}

// Mounted under both controllers' names, or also under that of one.
TEST(Processors, AQuotaOfVersion1) {
  for (const std::string mount : {"cpu", "cpu,cpuacct"}) {
    const TemporaryFolder root;
    root.write("proc/self/cgroup", kGroups);
    const std::string group = "sys/fs/cgroup/" + mount + "/jobs/";
    root.write(group + "a/cpu.cfs_quota_us", "-1\n");
    root.write(group + "a/cpu.cfs_period_us", "100000\n");
    EXPECT_FALSE(processor_quota(root.path()));
    root.write(group + "cpu.cfs_quota_us", "25000\n");
    root.write(group + "cpu.cfs_period_us", "50000\n");
    ASSERT_TRUE(processor_quota(root.path()));
    EXPECT_DOUBLE_EQ(processor_quota(root.path())->processors, 0.5);
    EXPECT_EQ(processor_quota(root.path())->limit, "cpu.cfs_quota_us of cgroup /jobs");
  }
}

TEST(Processors, AQuotaIsRoundedUpAndAtLeastOneThread) {
  const TemporaryFolder root;
  root.write("proc/self/cgroup", "0::/\n");
  const auto threads = [&root](const std::string& quota) {
    root.write("sys/fs/cgroup/cpu.max", quota + "\n");
    return parallel_threads(root.path());
  };
  EXPECT_EQ(threads("1000 100000"), 1u);
  EXPECT_EQ(threads("100000 100000"), 1u);
  EXPECT_EQ(threads("110000 100000"), std::min<size_t>(2, usable_processors().size()));
  EXPECT_EQ(threads("100000000 100000"), usable_processors().size());
}

}  // namespace
}  // namespace elixir
