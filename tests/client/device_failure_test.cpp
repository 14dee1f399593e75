// A device that fails for good, at any call: training ends with its error, never with a signal.

#include <atomic>

#include "tests/client/calling_device.h"
#include "tests/client/small_training.h"
#include "tests/client/with_elixird.h"
#include "tests/support/matchers.h"

namespace elixir::test {
namespace {

class DeviceFailure : public WithElixird {
 protected:
  static TrainingPlan plan_of_three_steps() {
    TrainingPlan plan;
    plan.steps = 3;
    plan.chunk_numel = largest_parameter_numel();
    plan.rcache_blocks = 3;
    return plan;
  }
  static void expect_end_with(const char* text, const TrainingPlan& plan) {
    try {
      train_through_elixird(plan);
      ADD_FAILURE() << "it went on";
    } catch (const Error& failure) {
      EXPECT_EQ(failure.code(), Code::kInternal);
      EXPECT_THAT(failure.what(), HasSubstr(text));
    }
  }
};

// As a CUDA device after a kernel's illegal access: from one call on, each fails.
class BreakingDevice final : public CallingDevice {
 public:
  BreakingDevice(int calls, std::atomic<int>* made) : calls_(calls), made_(made) {}

 private:
  void called(DeviceCall call) override {
    if (call == DeviceCall::kMake) return;
    if (made_->fetch_add(1) >= calls_) throw Error(error(Code::kInternal, "the device is broken"));
  }

  const int calls_;
  std::atomic<int>* const made_;
};

TEST_F(DeviceFailure, AtAnyCallEndsTrainingWithItsError) {
  TrainingPlan plan = plan_of_three_steps();
  plan.gpu_state_share = 0.25;
  std::atomic<int> made = 0;
  const auto plan_with = [&](int calls) {
    made = 0;
    plan.make_device = [&made, calls](uint32_t) {
      return std::make_unique<BreakingDevice>(calls, &made);
    };
    return plan;
  };
  train_through_elixird(plan_with(INT_MAX));
  const int all = made;
  ASSERT_GT(all, 200);
  // A prime, so that no kind of call is passed over. The last few are destructors', which have
  // nobody to throw to.
  for (int calls = 0; calls < all - 20; calls += 7) {
    SCOPED_TRACE(calls);
    expect_end_with("the device is broken", plan_with(calls));
  }
}

// That can no longer be made a thread's current device, as after CUDA's sticky errors.
class UnenterableDevice final : public LazyDevice {
 public:
  void make_current() override {
    ++entered_elsewhere;
    throw std::runtime_error("this device has failed");
  }

  static inline std::atomic<int> entered_elsewhere = 0;
};

TEST_F(DeviceFailure, InAThreadsFirstCallIsNoExceptionOfThatThread) {
  TrainingPlan plan = plan_of_three_steps();
  plan.make_device = [](uint32_t) { return std::make_unique<UnenterableDevice>(); };
  expect_end_with("this device has failed", plan);
  EXPECT_GT(UnenterableDevice::entered_elsewhere, 0);
}

}  // namespace
}  // namespace elixir::test
