#include "models/program.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace elixir {
namespace {

TEST(UseThreads, TheFlagThenTheVariableSetsTorchsThreads) {
  const int before = at::get_num_threads();
  ::unsetenv("TORCHELASTIC_RUN_ID");
  ::setenv("OMP_WAIT_POLICY", "passive", 1);  // else the program would start again
  ::setenv("OMP_NUM_THREADS", "3", 1);
  use_threads(0, 1);
  EXPECT_EQ(at::get_num_threads(), 3);
  use_threads(5, 1);
  EXPECT_EQ(at::get_num_threads(), 5);
  ::unsetenv("OMP_NUM_THREADS");
  at::set_num_threads(before);
}

}  // namespace
}  // namespace elixir
