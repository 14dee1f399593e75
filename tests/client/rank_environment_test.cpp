#include "client/ranks/rank_environment.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdlib>

#include "base/fd.h"
#include "tests/support/matchers.h"

namespace elixir {
namespace {

Launch third_attempt() {
  Launch launch;
  launch.id = "run-7";
  launch.attempt = 2;
  launch.max_restarts = 5;
  launch.ranks = 4;
  launch.master_port = 1234;
  launch.runtime_path = "/run/x";
  return launch;
}

TEST(RankEnvironmentTest, HasTorchrunsVariables) {
  const std::vector<std::string> environment = rank_environment(third_attempt(), 3);
  for (const char* entry :
       {"RANK=3", "LOCAL_RANK=3", "WORLD_SIZE=4", "LOCAL_WORLD_SIZE=4", "GROUP_RANK=0",
        "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1234", "TORCHELASTIC_RUN_ID=run-7",
        "TORCHELASTIC_RESTART_COUNT=2", "TORCHELASTIC_MAX_RESTARTS=5", "ELIXIR_JOB=run-7-2",
        "ELIXIR_RUNTIME_DIR=/run/x"}) {
    EXPECT_THAT(environment, Contains(entry));
  }
}

TEST(RankEnvironmentTest, RanksOfANodeFollowThoseOfTheNodesBefore) {
  Launch second = third_attempt();
  second.nodes = 3;
  second.node_rank = 1;
  second.master_address = "node-a";
  const std::vector<std::string> environment = rank_environment(second, 2);
  for (const char* entry : {"RANK=6", "LOCAL_RANK=2", "ROLE_RANK=6", "WORLD_SIZE=12",
                            "LOCAL_WORLD_SIZE=4", "ROLE_WORLD_SIZE=12", "GROUP_RANK=1",
                            "GROUP_WORLD_SIZE=3", "MASTER_ADDR=node-a", "MASTER_PORT=1234"}) {
    EXPECT_THAT(environment, Contains(entry));
  }
}

TEST(RankEnvironmentTest, ThreadsAreSetOnlyWhereTheUserHasNot) {
  ::unsetenv("OMP_NUM_THREADS");
  EXPECT_THAT(rank_environment(third_attempt(), 0), Contains(StartsWith("OMP_NUM_THREADS=")));
  Launch crowded = third_attempt();
  crowded.ranks = 100000;
  EXPECT_THAT(rank_environment(crowded, 0), Contains("OMP_NUM_THREADS=1"));
  ::setenv("OMP_NUM_THREADS", "3", 1);
  EXPECT_THAT(rank_environment(third_attempt(), 0), Not(Contains(StartsWith("OMP_NUM_THREADS="))));
  ::unsetenv("OMP_NUM_THREADS");
}

TEST(RankEnvironmentTest, PythonPrintsAtOnceUnlessTheUserHasSaid) {
  ::unsetenv("PYTHONUNBUFFERED");
  EXPECT_THAT(rank_environment(third_attempt(), 0), Contains("PYTHONUNBUFFERED=1"));
  ::setenv("PYTHONUNBUFFERED", "", 1);
  EXPECT_THAT(rank_environment(third_attempt(), 0), Not(Contains(StartsWith("PYTHONUNBUFFERED="))));
  ::unsetenv("PYTHONUNBUFFERED");
}

TEST(RankEnvironmentTest, LaunchesAndAttemptsAreJobsOfTheirOwn) {
  EXPECT_NE(new_launch_id(), new_launch_id());
  Launch next = third_attempt();
  ++next.attempt;
  EXPECT_NE(next.job(), third_attempt().job());
  EXPECT_LT(new_launch_id().size(), 64u);
}

TEST(FreePortTest, CanBeBound) {
  const uint16_t port = must(free_port());
  EXPECT_GT(port, 1023);
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
}

TEST(RankEnvironmentTest, OpenMpSpinsBrieflyUnlessTheUserSaysOtherwise) {
  for (const char* name : {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}) ::unsetenv(name);
  EXPECT_THAT(rank_environment(third_attempt(), 0), Contains("GOMP_SPINCOUNT=1000"));
  for (const char* name : {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}) {
    ::setenv(name, "1", 1);
    EXPECT_THAT(rank_environment(third_attempt(), 0), Not(Contains(StartsWith("GOMP_SPINCOUNT="))));
    ::unsetenv(name);
  }
}

}  // namespace
}  // namespace elixir
