#include "base/oom_watch.h"

#include <gmock/gmock.h>

#include "tests/support/temporary_folder.h"

namespace elixir {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(OomWatch, CountsTheVictimsOfAGroupOfVersion2) {
  const TemporaryFolder root;
  root.write("proc/77/cgroup", "0::/jobs/a\n");
  const std::string group = "sys/fs/cgroup/jobs/a/";
  root.write(group + "memory.max", "536870912\n");
  root.write(group + "memory.current", "1\n");
  root.write(group + "memory.events", "low 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 0\n");
  const OomWatch watch("77", root.path());
  EXPECT_EQ(watch.verdict(), "");
  root.write(group + "memory.events", "low 0\nmax 9\noom 5\noom_kill 3\noom_group_kill 0\n");
  EXPECT_THAT(watch.verdict(), AllOf(HasSubstr("cgroup /jobs/a"), HasSubstr("memory.max"),
                                     HasSubstr("512.00 MiB"), HasSubstr("raise that limit")));
  EXPECT_EQ(OomWatch("77", root.path()).verdict(), "");  // those before do not count
}

TEST(OomWatch, CountsTheVictimsOfAGroupOfVersion1) {
  const TemporaryFolder root;
  root.write("proc/self/cgroup", "4:memory:/b\n0::/\n");
  const std::string control = "sys/fs/cgroup/memory/b/memory.oom_control";
  root.write(control, "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n");
  const OomWatch watch("self", root.path());
  root.write(control, "oom_kill_disable 0\nunder_oom 1\noom_kill 1\n");
  EXPECT_THAT(watch.verdict(), HasSubstr("cgroup /b"));
}

// A container may see no group, and the machine itself may have no memory left.
TEST(OomWatch, CountsThoseOfTheMachineWithoutAGroup) {
  const TemporaryFolder root;
  root.write("proc/vmstat", "pgfault 5\noom_kill 1\n");
  const OomWatch watch("self", root.path());
  EXPECT_EQ(watch.verdict(), "");
  root.write("proc/vmstat", "pgfault 6\noom_kill 2\n");
  EXPECT_THAT(watch.verdict(), HasSubstr("this machine"));
}

TEST(OomWatch, NothingToReadIsNoVictim) {
  const TemporaryFolder root;
  EXPECT_EQ(OomWatch("self", root.path()).verdict(), "");
}

}  // namespace
}  // namespace elixir
