// The paper's measurements against the simulator, from the paper's hardware figures (its table 4)
// and three fitted constants: 185 TFLOPS, half of it at 2048 tokens, a quarter of the copies
// hidden.

#include "tests/planner/paper_table.h"

#include <gtest/gtest.h>

#include <cmath>

#include "planner/search/make_plan.h"
#include "tests/planner/gpt_profile.h"
#include "tests/planner/machines.h"

namespace elixir::planner {
namespace {

using testing::kPaperTable7;
using testing::PaperCell;

constexpr double kTolerance = 0.20;

// 0: does not fit.
double tflops(const PaperCell& cell, Policy policy, double factor = 1) {
  const ModelProfile profile = testing::gpt_profile(*transformer_config(cell.model),
                                                    {.batch = static_cast<uint64_t>(cell.batch)});
  Machine machine = testing::a100_server(static_cast<uint32_t>(cell.gpus), /*nvlink=*/true);
  machine.gpu_tflops *= factor;
  const Result<PlannedStep> planned = make_plan(profile, machine, {.policy = policy});
  if (planned.ok()) return planned->plan.predicted_tflops;
  EXPECT_EQ(planned.status().code(), Code::kResourceExhausted) << planned.status().message();
  return 0;
}

// And this project's own runtime, which hides more than the paper's, is predicted to be faster
// where copies bind.
TEST(PaperTable7, EveryCellOfElixirAndTheOrderOfStrategiesInEveryRow) {
  for (const PaperCell& cell : kPaperTable7) {
    SCOPED_TRACE(::testing::Message()
                 << cell.model << " " << cell.gpus << " GPUs, batch " << cell.batch);
    const double elixir = tflops(cell, Policy::kPaper);
    const double zero2 = tflops(cell, Policy::kZero2Offload);
    const double zero3 = tflops(cell, Policy::kZero3Offload);
    EXPECT_NEAR(elixir / cell.elixir, 1, kTolerance);
    EXPECT_GT(zero3, 0);
    EXPECT_GT(elixir, zero3);
    if (cell.gpus == 1) {
      EXPECT_GT(tflops(cell, Policy::kElixir), elixir);
    }
    if (cell.zero2_offload > 0) {
      EXPECT_GT(zero2, 0) << "ran on the paper's machine";
    }
    if (zero2 == 0) continue;
    EXPECT_GT(elixir, zero2);
    EXPECT_GT(zero2, zero3);
  }
}

// That the first test can fail: a GPU half as fast is seen in most cells.
TEST(PaperTable7, AnotherRateIsSeen) {
  int outside = 0;
  for (const PaperCell& cell : kPaperTable7) {
    outside += std::abs(tflops(cell, Policy::kPaper, 0.5) / cell.elixir - 1) > kTolerance;
  }
  EXPECT_GT(outside, 30);
}

}  // namespace
}  // namespace elixir::planner
