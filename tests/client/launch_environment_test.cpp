#include "client/train/launch_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace elixir {
namespace {

using testing::HasSubstr;

class LaunchEnvironmentTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name :
         {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
          "ELIXIR_JOB", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_PROCID",
          "SLURM_STEP_NUM_NODES", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE",
          "SLURM_JOB_ID", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}) {
      ::unsetenv(name);
    }
  }
  static void set(const char* name, const char* value) { ::setenv(name, value, 1); }
};

TEST_F(LaunchEnvironmentTest, AloneIsOneRankWithAJobOfItsOwn) {
  const LaunchEnvironment first = *read_launch_environment();
  EXPECT_EQ(first.world_size, 1u);
  EXPECT_EQ(first.starter, "alone");
  EXPECT_NE(first.job, read_launch_environment()->job);
}

TEST_F(LaunchEnvironmentTest, ReadsTorchrun) {
  set("RANK", "5");
  set("WORLD_SIZE", "8");
  set("LOCAL_RANK", "1");
  set("LOCAL_WORLD_SIZE", "4");
  set("MASTER_PORT", "29500");
  const LaunchEnvironment environment = *read_launch_environment();
  EXPECT_EQ(environment.rank, 5u);
  EXPECT_EQ(environment.local_rank, 1u);
  EXPECT_EQ(environment.local_world_size, 4u);
  EXPECT_THAT(environment.job, HasSubstr("29500"));
  set("TORCHELASTIC_RESTART_COUNT", "1");
  EXPECT_NE(environment.job, read_launch_environment()->job);
}

TEST_F(LaunchEnvironmentTest, ReadsSlurmAndOpenMpi) {
  set("SLURM_PROCID", "1");
  set("SLURM_NTASKS", "2");
  set("SLURM_LOCALID", "1");
  set("SLURM_JOB_ID", "77");
  EXPECT_EQ(read_launch_environment()->rank, 1u);
  EXPECT_THAT(read_launch_environment()->job, HasSubstr("77"));
  set("SLURM_STEP_NUM_NODES", "2");
  EXPECT_THAT(read_launch_environment().status().message(), HasSubstr("--nodes=1"));
  SetUp();
  set("OMPI_COMM_WORLD_RANK", "2");
  set("OMPI_COMM_WORLD_SIZE", "3");
  EXPECT_EQ(read_launch_environment()->starter, "openmpi");
  EXPECT_EQ(read_launch_environment()->local_rank, 2u);
}

TEST_F(LaunchEnvironmentTest, RefusesWhatContradictsItself) {
  set("RANK", "2");
  set("WORLD_SIZE", "2");
  EXPECT_EQ(read_launch_environment().status().code(), Code::kInvalidArgument);
  set("RANK", "x");
  EXPECT_THAT(read_launch_environment().status().message(), HasSubstr("RANK='x'"));
}

}  // namespace
}  // namespace elixir
