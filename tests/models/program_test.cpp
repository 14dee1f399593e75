#include "models/program.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "base/throw_error.h"

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

TEST(CurrentFailure, HasTheCodeAndTheTextOfWhatWasThrown) {
  const auto failure_of = [](const auto& thrown) {
    try {
      throw thrown;
    } catch (const std::exception&) {
      return current_failure("use less");
    }
  };
  const Status own = failure_of(Error(Status(Code::kPeerLost, "rank 1\nhas gone")));
  EXPECT_EQ(own.code(), Code::kPeerLost);
  EXPECT_EQ(own.message(), "rank 1?has gone");
  const c10::SourceLocation here{"here", "there", 1};
  const Status memory = failure_of(c10::OutOfMemoryError(here, "7 bytes"));
  EXPECT_EQ(memory.code(), Code::kResourceExhausted);
  EXPECT_EQ(memory.message().find("LibTorch found no memory on the device: use less; 7 bytes"), 0u);
  const Status torch = failure_of(c10::Error(here, "no such operator"));
  EXPECT_EQ(torch.code(), Code::kInternal);
  EXPECT_EQ(torch.message().find("no such operator"), 0u);
  EXPECT_EQ(torch.message().find("there"), std::string::npos) << "no backtrace";
  EXPECT_FALSE(failure_of(std::bad_alloc()).ok());
}

}  // namespace
}  // namespace elixir
