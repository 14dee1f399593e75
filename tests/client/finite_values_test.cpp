// What a save says of values that are not finite, and what a load does with them.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "base/fd.h"
#include "checkpoint/stored_folder.h"
#include "tests/client/saved_module.h"
#include "tests/client/with_elixird.h"
#include "tests/support/temporary_folder.h"

namespace elixir::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class FiniteValues : public WithElixird {
 protected:
  // Chunks so short that matrices lie in several; on the device, as on a GPU, where asked for.
  static Options short_chunks(const std::string& load_from = "", double gpu_state_share = 0) {
    Options options = runtime(load_from);
    options.layout.chunk_numel = 256;
    options.layout.gpu_state_share = gpu_state_share;
    return options;
  }
  static void set(MixedRun& run, const at::Tensor& parameter, int64_t at, float value) {
    const at::Tensor values = parameter.detach().to(at::kFloat).clone();
    values.view(-1)[at] = value;
    run.optimizer.set_parameter(parameter, values);
  }
  std::string save(MixedRun& run, SaveReport* report = nullptr) {
    const std::string path = folder_.path("save-" + std::to_string(++saves_));
    const SaveReport saved = run.optimizer.save(path).wait();
    if (report != nullptr) *report = saved;
    return path;
  }
  static checkpoints::Health health_of(const std::string& path) {
    return must(checkpoints::open_stored_folder(path)).manifest->health.value();
  }

  const TemporaryFolder folder_;
  int saves_ = 0;
};

TEST_F(FiniteValues, ASaveCountsThemInEveryTypeAndOnTheDevice) {
  for (const ComputeType type : {ComputeType::kFp32, ComputeType::kBf16, ComputeType::kFp16}) {
    for (const double share : {0.0, 1.0}) {
      Options options = short_chunks("", share);
      options.dtype = type;
      if (type == ComputeType::kFp16) options.loss_scale = 128;
      MixedRun run(0, options);
      SaveReport report;
      EXPECT_EQ(health_of(save(run, &report)), checkpoints::Health());
      EXPECT_EQ(report.not_finite, 0u);
      set(run, run.model.first->weight, 0, kNan);
      set(run, run.model.first->weight, run.model.first->weight.numel() - 1, -kInfinity);
      set(run, run.model.head->bias, 0, kInfinity);
      // In FP16 the parameter and its FP32 master.
      const uint64_t count = type == ComputeType::kFp16 ? 6 : 3;
      EXPECT_EQ(health_of(save(run, &report)).not_finite, count);
      EXPECT_EQ(report.not_finite, count);
    }
  }
}

TEST_F(FiniteValues, MomentsCountAndFrozenParametersDoNot) {
  MixedRun run(0, short_chunks());
  run.optimizer.zero_grad();
  (run.model.loss(0) * kInfinity).backward();
  run.optimizer.step();
  SaveReport report;
  save(run, &report);
  uint64_t trained = 0;
  for (const auto& [name, state] : run.optimizer.state_dict()) {
    for (const at::Tensor& values : {state.master, state.exp_avg, state.exp_avg_sq}) {
      trained += static_cast<uint64_t>((~at::isfinite(values)).sum().item<int64_t>());
    }
  }
  EXPECT_GT(trained, 0u);
  EXPECT_EQ(report.not_finite, trained);

  MixedRun frozen(0, short_chunks());
  set(frozen, frozen.model.frozen->weight, 5, kNan);
  save(frozen, &report);
  EXPECT_EQ(report.not_finite, 0u);
}

TEST_F(FiniteValues, TheProgramsWordOnItsStepIsKept) {
  MixedRun run(1);
  SaveOptions options;
  options.finite_step = false;
  run.optimizer.save(folder_.path("step"), options).wait();
  EXPECT_EQ(health_of(folder_.path("step")), (checkpoints::Health{0, false}));
}

TEST_F(FiniteValues, ALoadRefusesEachParameterByName) {
  MixedRun run(1, short_chunks());
  for (const auto& item : run.model.named_parameters()) {
    if (!item.value().requires_grad() || item.key() == "scale") continue;
    for (const int64_t at : {int64_t{0}, item.value().numel() - 1}) {
      const at::Tensor before = item.value().detach().to(at::kFloat).clone();
      set(run, item.value(), at, at == 0 ? kNan : kInfinity);
      const std::string path = save(run);
      const std::string name = "'" + item.key() + "' has 1 value that is NaN or infinite";
      for (const double share : {0.0, 0.5, 1.0}) {
        EXPECT_THAT(refusal_of([&] { MixedRun(0, short_chunks(path, share)); }, Code::kBadInput),
                    AllOf(HasSubstr(path), HasSubstr(name)))
            << share;
      }
      run.optimizer.set_parameter(item.value(), before);
    }
  }
  EXPECT_EQ(MixedRun(0, short_chunks(save(run))).weights(), run.weights());  // the control
}

TEST_F(FiniteValues, StatesAreRefusedAndTheWeightsAloneAreNot) {
  MixedRun run(1, short_chunks());
  const std::string finite = save(run);
  run.optimizer.zero_grad();
  (run.model.loss(0) * kInfinity).backward();
  run.optimizer.step();
  // Whole weights beside what the step has left of the moments.
  MixedRun whole(0, short_chunks(finite));
  for (const auto& item : run.model.named_parameters()) {
    if (!item.value().requires_grad() || item.key() == "scale") continue;
    const auto masters = whole.optimizer.state_dict();
    run.optimizer.set_parameter(item.value(), masters.at(item.key()).master);
  }
  const std::string path = save(run);
  EXPECT_THAT(refusal_of([&] { MixedRun(0, short_chunks(path)); }, Code::kBadInput),
              HasSubstr("'state.first.weight.exp_avg' has "));
  Options weights_alone = short_chunks(path);
  weights_alone.load_states = false;
  EXPECT_EQ(MixedRun(0, weights_alone).weights(), whole.weights());
}

TEST_F(FiniteValues, WhatFp16CannotHoldIsRefusedAtTheLoad) {
  MixedRun run(0, short_chunks());
  set(run, run.model.first->weight, 3, 65519);  // rounds to 65504
  const std::string fits = save(run);
  set(run, run.model.head->bias, 0, -70000);
  const std::string large = save(run);
  const auto fp16 = [&](const std::string& path) {
    Options options = short_chunks(path);
    options.dtype = ComputeType::kFp16;
    options.loss_scale = 128;
    options.load_states = false;
    return options;
  };
  EXPECT_NO_THROW(MixedRun(0, fp16(fits)));
  EXPECT_THAT(refusal_of([&] { MixedRun(0, fp16(large)); }, Code::kBadInput),
              AllOf(HasSubstr("'head.bias' has 1 value that is beyond 65504"), HasSubstr("bf16")));
}

}  // namespace
}  // namespace elixir::test
