// What swing chunks cost and gain in time, over an emulated link: against the planner's simulation,
// against its choice, and what a gather waits for them. It measures time.

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>

#include "client/exchange/swing_runner.h"
#include "planner/search/make_plan.h"
#include "planner/simulate/simulate.h"
#include "tests/client/paced_trainer.h"
#include "tests/client/with_elixird.h"
#include "tests/support/matchers.h"

namespace elixir::test {
namespace {

constexpr int kAttempts = 6;  // others may use the processors
constexpr double kClose = 0.10;

// One worker whose rate is near to what a slow link brings.
class SwingTimes : public ::testing::Test {
 protected:
  static void start_elixird(const char* isa, const char* workers) {
    if (isa != nullptr) ::setenv("ELIXIR_ISA", isa, 1);  // read by elixird when it starts
    daemon_ = std::make_unique<elixir::testing::DaemonProcess>(
        std::vector<std::string>{"--no-bandwidth-probe", "--workers", workers});
    ::unsetenv("ELIXIR_ISA");
    ::setenv("ELIXIR_RUNTIME_DIR", daemon_->folder().path.c_str(), 1);
  }
  void TearDown() override { daemon_.reset(); }

  static inline std::unique_ptr<elixir::testing::DaemonProcess> daemon_;
};

TEST_F(SwingTimes, StepsAreAsLongAsSimulatedOnes) {
  start_elixird("scalar", "1");
  for (const double gb_s : {0.2, 0.4, 0.8}) {
    for (const uint32_t stride : {2u, 3u, 6u}) {
      const PacedTraining of{.link = {gb_s, gb_s, 0, 20}, .stride = stride};
      double best = std::numeric_limits<double>::infinity(), simulated_s = 0, measured_s = 0;
      for (int attempt = 0; attempt < kAttempts && best > kClose; ++attempt) {
        const PacedSteps measured = train_paced(of);
        ASSERT_EQ(measured.wrong, "");
        const auto times = must(planner::simulate_step(step_model_of(of, measured)));
        const double off = std::abs(times.step_s / measured.step_s - 1);
        if (off >= best) continue;
        best = off;
        simulated_s = times.step_s;
        measured_s = measured.step_s;
      }
      fmt::print("{} GB/s, every {}th: simulated {:.1f} ms, measured {:.1f} ms ({:+.1f} %)\n", gb_s,
                 stride, 1e3 * simulated_s, 1e3 * measured_s, 1e2 * (simulated_s / measured_s - 1));
      EXPECT_LE(best, kClose);
    }
  }
}

// The planner's own view of the same step, with these rates.
planner::Plan plan_of(const PacedTraining& of, const PacedSteps& measured) {
  constexpr double kFlops = 1e12;
  planner::ModelProfile profile;
  profile.tokens = 1;
  for (uint32_t i = 0; i < of.chunks; ++i) {
    profile.params.push_back({.name = fmt::format("p{}", i), .numel = of.chunk_numel});
    profile.steps.push_back({i});
  }
  for (uint32_t i = of.chunks; i-- > 0;) profile.steps.push_back({i});
  profile.step_flops.assign(profile.steps.size(), 1e-6 * of.operator_us * kFlops);
  planner::Machine machine;
  machine.h2d_gb_s = of.link.h2d_gb_s;
  machine.d2h_gb_s = of.link.d2h_gb_s;
  machine.cpu_update_gparam_s = 1e-9 * measured.cpu_update_numel_s;
  machine.gpu_update_gparam_s = 1e-9 * device_update_numel_s(of.chunk_numel);
  machine.gpu_tflops = 1e-12 * kFlops;
  machine.dram_gb_s = 1000;  // not what binds here
  machine.gpu_memory_bytes = machine.host_memory_bytes = uint64_t{64} << 30;
  planner::PlanRequest request;
  request.update = UpdateMode::kDeferred;
  request.layout.chunk_numel = of.chunk_numel;
  request.layout.rcache_blocks = of.chunks;
  request.layout.gpu_state_share = 0;
  const auto planned = planner::make_plan(profile, machine, request);
  EXPECT_TRUE(planned.ok()) << planned.status().message();
  return planned.ok() ? planned->plan : planner::Plan();
}

TEST_F(SwingTimes, ThePlannersStrideIsTheBestOrNearlySo) {
  start_elixird("scalar", "1");
  const PacedTraining without{.link = {1, 1, 0, 20}};
  std::map<uint32_t, double> steps_s;
  const auto measure = [&](uint32_t stride) {
    PacedTraining of = without;
    of.stride = stride;
    PacedSteps best;
    for (int attempt = 0; attempt < 3; ++attempt) {
      const PacedSteps measured = train_paced(of);
      EXPECT_EQ(measured.wrong, "");
      if (attempt == 0 || measured.step_s < best.step_s) best.step_s = measured.step_s;
      best.cpu_update_numel_s = std::max(best.cpu_update_numel_s, measured.cpu_update_numel_s);
    }
    steps_s[stride] = best.step_s;
    return best;
  };
  const planner::Plan plan = plan_of(without, measure(0));
  for (const uint32_t stride : {1u, 2u, 3u, 4u, 6u, 12u}) measure(stride);
  if (steps_s.count(plan.chosen.stride) == 0) measure(plan.chosen.stride);
  double shortest_s = std::numeric_limits<double>::infinity();
  for (const auto& [stride, step_s] : steps_s) {
    shortest_s = std::min(shortest_s, step_s);
    fmt::print("stride {:2}: {:.1f} ms{}\n", stride, 1e3 * step_s,
               stride == plan.chosen.stride
                   ? fmt::format(", the plan's, {:.1f} predicted", 1e3 * plan.predicted.step_s)
                   : "");
  }
  EXPECT_GT(plan.chosen.stride, 0u);
  EXPECT_LE(steps_s[plan.chosen.stride], 1.05 * shortest_s);
}

TEST_F(SwingTimes, WhereWorkersAreFastThePlannerTakesNone) {
  start_elixird(nullptr, "0");
  const PacedTraining of{.link = {1, 1, 0, 20}};
  PacedSteps best;
  planner::Plan plan;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const PacedSteps measured = train_paced(of);
    ASSERT_EQ(measured.wrong, "");
    if (measured.cpu_update_numel_s < best.cpu_update_numel_s) continue;
    best = measured;
    plan = plan_of(of, best);
    if (plan.chosen.stride == 0) break;
  }
  fmt::print("workers update {:.2f} G a second\n", 1e-9 * best.cpu_update_numel_s);
  EXPECT_EQ(plan.chosen.stride, 0u);
  EXPECT_EQ(plan.swing.why, planner::SwingFound::Why::kNoGain);
}

// Whatever swings, a gather's copy waits for the pieces that the device has: their time, and 20 %.
TEST_F(SwingTimes, AGatherWaitsForTwoPiecesAtMost) {
  start_elixird(nullptr, "1");
  double best = std::numeric_limits<double>::infinity();
  constexpr double kGbS = 2;
  const double pieces_s = SwingRunner::kPiecesAtOnce * SwingRunner::kPieceBytes / (1e9 * kGbS);
  for (int attempt = 0; attempt < kAttempts && best > 1.2 * pieces_s; ++attempt) {
    const double waited_s = longest_gather_s({kGbS, kGbS, 0, 0});
    best = std::min(best, waited_s);
  }
  fmt::print("two pieces take {:.1f} ms; the longest wait was {:.1f} ms\n", 1e3 * pieces_s,
             1e3 * best);
  EXPECT_LE(best, 1.2 * pieces_s);
  EXPECT_GE(best, 0.4 * pieces_s) << "nothing was in the way";
}

}  // namespace
}  // namespace elixir::test
