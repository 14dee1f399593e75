#include "client/ranks/compute_threads.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "client/ranks/rank_environment.h"

namespace elixir {
namespace {

class ComputeThreads : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"OMP_NUM_THREADS", "TORCHELASTIC_RUN_ID", "ELIXIR_JOB"})
      ::unsetenv(name);
  }
  void TearDown() override { SetUp(); }
  static void set(const char* name, const char* value) { ::setenv(name, value, 1); }
};

TEST_F(ComputeThreads, AreTheProcessorsSharedAmongTheRanks) {
  EXPECT_EQ(compute_threads(0, 1, 8), 8u);
  EXPECT_EQ(compute_threads(0, 3, 8), 2u);
  EXPECT_EQ(compute_threads(0, 16, 8), 1u);
}

TEST_F(ComputeThreads, TheFlagComesFirstThenTheVariable) {
  set("OMP_NUM_THREADS", "3");
  EXPECT_EQ(compute_threads(0, 2, 8), 3u);
  EXPECT_EQ(compute_threads(5, 2, 8), 5u);
  set("OMP_NUM_THREADS", "2,4");
  EXPECT_EQ(compute_threads(0, 1, 8), 2u);
  set("OMP_NUM_THREADS", "1");
  EXPECT_EQ(compute_threads(0, 1, 8), 1u);
}

TEST_F(ComputeThreads, WhatIsNoNumberOfThreadsIsAsIfUnset) {
  for (const char* value : {"", "0", "-2", "many", "3x", "99999999999999999999"}) {
    set("OMP_NUM_THREADS", value);
    EXPECT_EQ(compute_threads(0, 1, 8), 8u) << value;
  }
}

TEST_F(ComputeThreads, TorchrunsOwnOneDoesNotCount) {
  set("TORCHELASTIC_RUN_ID", "none");
  set("OMP_NUM_THREADS", "1");
  EXPECT_EQ(compute_threads(0, 2, 8), 4u);
  set("OMP_NUM_THREADS", "2");  // the user's: torchrun keeps it
  EXPECT_EQ(compute_threads(0, 2, 8), 2u);
}

// It is the user's, or how elixir-run shares the processors.
TEST_F(ComputeThreads, OneOfElixirRunCounts) {
  set("OMP_NUM_THREADS", "1");
  Launch launch;
  launch.id = new_launch_id();
  set("TORCHELASTIC_RUN_ID", launch.id.c_str());
  set("ELIXIR_JOB", launch.job().c_str());
  EXPECT_EQ(compute_threads(0, 2, 8), 1u);
}

}  // namespace
}  // namespace elixir
