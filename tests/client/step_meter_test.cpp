// Whose clock a step's times are of.

#include "client/step/step_meter.h"

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "tests/client/lazy_device.h"
#include "tests/support/matchers.h"

namespace elixir::test {
namespace {

constexpr uint64_t kMs = 1'000'000;

// Works behind the host: what it was told, and the times that it tells.
class LateDevice final : public LazyDevice {
 public:
  bool runs_behind_host() const override { return true; }
  void operators_run() override {
    if (!running_) told.push_back("run");
    running_ = true;
  }
  bool operators_wait() override {
    if (running_) told.push_back("wait");
    return std::exchange(running_, false);
  }
  void operators_end(uint32_t step) override {
    told.push_back(fmt::format("end {}", step));
    running_ = false;
  }
  std::optional<OperatorTimes> take_operator_times() override {
    if (done.empty()) return std::nullopt;
    const OperatorTimes first = done.front();
    done.pop_front();
    return first;
  }

  std::vector<std::string> told;
  std::deque<OperatorTimes> done;

 private:
  bool running_ = false;
};

TEST(StepMeter, OnACpuTheHostsTimesAreTheOperators) {
  LazyDevice device;
  StepMeter meter(device, nullptr);
  meter.operators_run();
  { const StepMeter::Stall stall(meter); }
  meter.operators_end(1);
  EXPECT_EQ(meter.next(), std::nullopt);
  meter.end_step(1);
  const std::optional<StepLegs> legs = meter.next();
  ASSERT_NE(legs, std::nullopt);
  EXPECT_EQ(legs->step, 1u);
  EXPECT_GT(legs->step_ns, 0u);
  EXPECT_LE(legs->exposed_ns, legs->step_ns);
  EXPECT_EQ(meter.next(), std::nullopt);
}

TEST(StepMeter, OnAGpuTheyAreItsOwnAndKnownLater) {
  LateDevice device;
  StepMeter meter(device, nullptr);
  meter.operators_run();
  meter.operators_end(1);
  meter.end_step(1);
  EXPECT_EQ(meter.next(), std::nullopt);  // the host has passed it, the device has not
  device.done = {{.step = 1, .step_ns = 50 * kMs, .busy_ns = 20 * kMs}};
  const std::optional<StepLegs> legs = meter.next();
  ASSERT_NE(legs, std::nullopt);
  EXPECT_EQ(legs->step, 1u);
  EXPECT_EQ(legs->step_ns, 50 * kMs);
  EXPECT_EQ(legs->exposed_ns, 30 * kMs);
  EXPECT_EQ(meter.next(), std::nullopt);
}

TEST(StepMeter, AGpuIsToldWhenOperatorsWait) {
  LateDevice device;
  StepMeter meter(device, nullptr);
  { const StepMeter::Stall before_the_first(meter); }
  meter.operators_run();
  { const StepMeter::Stall stall(meter); }
  { const StepMeter::Stall of_the_host(meter, StepMeter::Waits::kHost); }
  meter.operators_end(1);
  { const StepMeter::Stall between_steps(meter); }
  meter.operators_run();
  EXPECT_THAT(device.told, ElementsAre("run", "wait", "run", "end 1", "run"));
}

}  // namespace
}  // namespace elixir::test
