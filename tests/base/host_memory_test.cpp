#include "base/host_memory.h"

#include <gtest/gtest.h>

#include "tests/support/temporary_folder.h"

namespace elixir {
namespace {

constexpr uint64_t kMiB = 1 << 20;

void write_meminfo(const TemporaryFolder& root, uint64_t available_mib) {
  root.write("proc/meminfo", "MemTotal:       99999999 kB\nMemFree:  1 kB\nMemAvailable:   " +
                                 std::to_string(available_mib * 1024) + " kB\nHugePages: 0\n");
}

TEST(HostMemory, TheMachineAlone) {
  const TemporaryFolder root;
  write_meminfo(root, 1000);
  const MemoryRoom room = memory_room(root.path());
  EXPECT_EQ(room.available_bytes, 1000 * kMiB);
  EXPECT_EQ(room.limit, "MemAvailable of this machine");
}

// A virtual machine whose memory grows with use.
TEST(HostMemory, ASettingRaisesWhatMemAvailableSaysAndNoCgroup) {
  const TemporaryFolder root;
  write_meminfo(root, 1000);
  EXPECT_EQ(memory_room(root.path(), 900 * kMiB).available_bytes, 1000 * kMiB);
  const MemoryRoom room = memory_room(root.path(), 5000 * kMiB);
  EXPECT_EQ(room.available_bytes, 5000 * kMiB);
  EXPECT_EQ(room.limit, "memory_room as set, above MemAvailable of this machine");
  ::setenv("ELIXIR_MEMORY_ROOM", "3GiB", 1);
  EXPECT_EQ(memory_room(root.path()).available_bytes, 3072 * kMiB);
  ::setenv("ELIXIR_MEMORY_ROOM", "much", 1);
  EXPECT_EQ(memory_room(root.path()).available_bytes, 1000 * kMiB);
  ::setenv("ELIXIR_MEMORY_ROOM", "200GiB", 1);
  EXPECT_EQ(memory_capacity(root.path()).available_bytes, 204800 * kMiB);
  root.write("proc/self/cgroup", "0::/job\n");
  root.write("sys/fs/cgroup/job/memory.max", std::to_string(500 * kMiB) + "\n");
  root.write("sys/fs/cgroup/job/memory.current", std::to_string(200 * kMiB) + "\n");
  EXPECT_EQ(memory_room(root.path()).available_bytes, 300 * kMiB);
  EXPECT_EQ(memory_capacity(root.path()).available_bytes, 500 * kMiB);
  ::unsetenv("ELIXIR_MEMORY_ROOM");
  EXPECT_EQ(memory_capacity(root.path()).available_bytes, 500 * kMiB);
}

TEST(HostMemory, TheCapacityIsOfTheMachineNotOfTheMoment) {
  const TemporaryFolder root;
  write_meminfo(root, 1000);
  EXPECT_EQ(memory_capacity(root.path()).available_bytes, uint64_t{99999999} * 1024);
  EXPECT_EQ(memory_capacity(root.path()).limit, "MemTotal of this machine");
}

TEST(HostMemory, WhatIsSwapped) {
  const TemporaryFolder root;
  EXPECT_EQ(used_swap_bytes(root.path()), 0u);
  root.write("proc/meminfo",
             "MemTotal: 9 kB\nSwapCached: 1 kB\nSwapTotal: 300 kB\nSwapFree: 100 kB\n");
  EXPECT_EQ(used_swap_bytes(root.path()), 200u * 1024);
}

TEST(HostMemory, NothingToReadIsNoLimit) {
  const TemporaryFolder root;
  EXPECT_EQ(memory_room(root.path()).available_bytes, UINT64_MAX);
}

TEST(HostMemory, Version2CountsEveryParent) {
  const TemporaryFolder root;
  write_meminfo(root, 1000);
  root.write("proc/self/cgroup", "0::/user/job\n");
  root.write("sys/fs/cgroup/user/job/memory.max", "max\n");
  root.write("sys/fs/cgroup/user/job/memory.current", "5\n");
  EXPECT_EQ(memory_room(root.path()).available_bytes, 1000 * kMiB);
  root.write("sys/fs/cgroup/user/memory.max", std::to_string(500 * kMiB) + "\n");
  root.write("sys/fs/cgroup/user/memory.current", std::to_string(200 * kMiB) + "\n");
  MemoryRoom room = memory_room(root.path());
  EXPECT_EQ(room.available_bytes, 300 * kMiB);
  EXPECT_EQ(room.limit, "memory.max of cgroup /user");
  // Page cache can be dropped; a child's own limit may be tighter.
  root.write("sys/fs/cgroup/user/memory.stat", "anon 1\ninactive_file " +
                                                   std::to_string(50 * kMiB) + "\nactive_file " +
                                                   std::to_string(20 * kMiB) + "\n");
  EXPECT_EQ(memory_room(root.path()).available_bytes, 360 * kMiB);
  root.write("sys/fs/cgroup/user/job/memory.max", "105\n");
  room = memory_room(root.path());
  EXPECT_EQ(room.available_bytes, 100u);
  EXPECT_EQ(room.limit, "memory.max of cgroup /user/job");
}

TEST(HostMemory, UsageAboveTheLimitLeavesNothing) {
  const TemporaryFolder root;
  root.write("proc/self/cgroup", "0::/\n");
  root.write("sys/fs/cgroup/memory.max", "100\n");
  root.write("sys/fs/cgroup/memory.current", "140\n");
  EXPECT_EQ(memory_room(root.path()).available_bytes, 0u);
}

TEST(HostMemory, Version1BesideOtherControllers) {
  const TemporaryFolder root;
  write_meminfo(root, 1000);
  root.write("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a/b\n1:name=systemd:/x\n0::/\n");
  // The mount shows only the part below /a: the group's own path does not exist in it.
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(400 * kMiB) + "\n");
  root.write("sys/fs/cgroup/memory/memory.usage_in_bytes", std::to_string(100 * kMiB) + "\n");
  root.write("sys/fs/cgroup/memory/memory.stat",
             "inactive_file 9999999999\ntotal_inactive_file " + std::to_string(10 * kMiB) + "\n");
  const MemoryRoom room = memory_room(root.path());
  EXPECT_EQ(room.available_bytes, 310 * kMiB);
  EXPECT_EQ(room.limit, "memory.limit_in_bytes of cgroup /");
}

// Of version 1 where both are mounted: it is the one that counts memory then.
TEST(HostMemory, TheGroupThatMemoryIsChargedTo) {
  const TemporaryFolder root;
  EXPECT_EQ(memory_group(root.path()), "");
  root.write("proc/self/cgroup", "0::/user/job_7\n");
  EXPECT_EQ(memory_group(root.path()), "/user/job_7");
  root.write("proc/4242/cgroup", "5:cpu,cpuacct:/a\n4:hugetlb,memory:/job_8/step_0\n0::/user\n");
  EXPECT_EQ(memory_group(root.path(), "4242"), "/job_8/step_0");
}

// Two jobs on a machine with cgroups of version 2: each is admitted by its own limit.
TEST(HostMemory, EachGroupHasItsOwnRoom) {
  const TemporaryFolder root;
  write_meminfo(root, 4000);
  root.write("sys/fs/cgroup/jobs/memory.max", "max\n");
  root.write("sys/fs/cgroup/jobs/memory.current", "5\n");
  for (const uint64_t mib : {300, 700}) {
    const std::string group = "/jobs/" + std::to_string(mib);
    root.write("sys/fs/cgroup" + group + "/memory.max", std::to_string(mib * kMiB) + "\n");
    root.write("sys/fs/cgroup" + group + "/memory.current", std::to_string(100 * kMiB) + "\n");
    root.write("proc/self/cgroup", "0::" + group + "\n");
    const MemoryRoom room = memory_room(root.path());
    EXPECT_EQ(room.available_bytes, (mib - 100) * kMiB);
    EXPECT_EQ(room.limit, "memory.max of cgroup " + group);
    EXPECT_EQ(memory_group(root.path()), group);
  }
}

TEST(HostMemory, ThisMachineHasSome) {
  EXPECT_GT(memory_room().available_bytes, 0u);
  EXPECT_LT(memory_room().available_bytes, uint64_t{1} << 50);
}

}  // namespace
}  // namespace elixir
