// What the element-wise kernels do a thread, done here by the host for every thread of a launch:
// the bits are those of optim_cpu.

#include "kernels/thread_work.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/compute_type_names.h"
#include "optim_cpu/master.h"
#include "tests/kernels/adam_steps.h"
#include "tests/optim_cpu/states.h"

namespace elixir::kernels {
namespace {

using optim::AdamStep;
using optim::bits_float;
using optim::float_bits;
using optim::Isa;
using optim::Random;
using optim::States;
using optim::UpdateSpan;

// Lengths about those at which a launch changes its way: vectors, strides, blocks.
constexpr size_t kLengths[] = {0,    1,    3,    4,    5,    1023, 1024, 1025, 2047, 2048,
                               2049, 3071, 4095, 4096, 4099, 5000, 6144, 8191, 8192, 12345};

// work(block, thread) for all threads of the launch that `Part` makes of `numel` elements.
template <class Part, class Work>
void launch(size_t numel, const Work& work) {
  for (size_t block = 0; block < Part::blocks(numel); ++block) {
    for (int thread = 0; thread < kThreads; ++thread) work(block, thread);
  }
}

template <ComputeType kType>
void launch_adam_typed(const UpdateSpan& span, const AdamStep& step) {
  const AdamArrays arrays = {span.param, span.master, span.moments[0], span.moments[1]};
  const optim::AdamConstants<float> constants(step);
  const void* const sum = span.grad_sum;
  launch<AdamPart>(span.numel, [&](size_t block, int thread) {
    if (sum == nullptr) {
      adam_thread<kType, kType>(arrays, span.grads, span.n_grads, span.numel, constants, block,
                                thread);
    } else {
      adam_thread<kType, ComputeType::kFp32>(arrays, &sum, 1, span.numel, constants, block, thread);
    }
  });
}

void launch_adam(const UpdateSpan& span, const AdamStep& step) {
  switch (span.type) {
    case ComputeType::kBf16:
      return launch_adam_typed<ComputeType::kBf16>(span, step);
    case ComputeType::kFp16:
      return launch_adam_typed<ComputeType::kFp16>(span, step);
    case ComputeType::kFp32:
      return launch_adam_typed<ComputeType::kFp32>(span, step);
  }
}

// The kinds of masters that come out, so that a test cannot pass on dull numbers.
struct Census {
  uint64_t tuples = 0, nan = 0, infinite = 0, denormal = 0, zero = 0, tie = 0;

  void count(const States& states) {
    tuples += states.numel;
    std::vector<float> masters(states.numel);
    optim::read_master(states.type, states.param.data(), states.master.data(), states.numel,
                       masters.data());
    for (float value : masters) {
      const uint32_t magnitude = float_bits(value) & 0x7fffffff;
      nan += magnitude > 0x7f800000;
      infinite += magnitude == 0x7f800000;
      denormal += magnitude != 0 && magnitude < 0x00800000;
      zero += magnitude == 0;
      tie += (magnitude & 0xffff) == 0x8000;
    }
  }
};

TEST(AdamThread, MillionsOfTuplesHaveTheScalarReferencesBits) {
  constexpr uint64_t kTuples = 3'000'000 / optim::kShare;
  const std::vector<AdamStep> steps = optim::adam_steps();
  for (ComputeType type : optim::kTypes) {
    Random random(11 + static_cast<uint64_t>(type));
    Census census;
    for (size_t round = 0; census.tuples < kTuples; ++round) {
      const int n_grads = round % 3 == 0 ? 1 + static_cast<int>(random.below(8)) : 1;
      States states(type, 4096 + random.below(4096), n_grads);
      states.fill(random);
      States expected = states;
      const AdamStep& step = steps[round % steps.size()];
      optim::adam_update(Isa::kScalar, expected.span(), step);
      launch_adam(states.span(), step);
      ASSERT_TRUE(states.same_bits(expected))
          << compute_type_name(type) << ", " << n_grads << " gradients, round " << round;
      census.count(states);
    }
    const uint64_t enough = census.tuples / 1000;
    EXPECT_GT(census.nan, enough);
    EXPECT_GT(census.infinite, enough);
    EXPECT_GT(census.denormal, enough);
    EXPECT_GT(census.zero, enough);
    EXPECT_GT(census.tie, enough);
    EXPECT_GT(census.tuples, census.nan * 2) << "mostly NaN: nothing is compared";
  }
}

// Every element once, none beyond the end.
TEST(AdamThread, AnyLength) {
  constexpr size_t kBeyond = 64;
  for (ComputeType type : optim::kTypes) {
    for (size_t numel : kLengths) {
      for (int n_grads : {1, 2, optim::kMaxGrads}) {
        Random random(numel);
        States states(type, numel + kBeyond, n_grads);
        states.fill(random);
        States expected = states;
        const AdamStep step = optim::make_adam_step({}, 5, 0.5);
        optim::adam_update(Isa::kScalar, expected.span(0, numel), step);
        launch_adam(states.span(0, numel), step);
        EXPECT_TRUE(states.same_bits(expected))
            << compute_type_name(type) << " " << numel << " elements, " << n_grads << " gradients";
      }
    }
  }
}

// The FP32 sum over rounds in the place of the gradients, which are not read.
TEST(AdamThread, TakesTheSumOverRounds) {
  for (ComputeType type : optim::kTypes) {
    for (size_t numel : kLengths) {
      Random random(numel + 1);
      std::vector<float> sum(numel);
      for (float& value : sum) value = bits_float(random.float_of_any_kind());
      States states(type, numel, 1);
      states.fill(random);
      States expected = states, ungiven = states;
      const AdamStep step = optim::make_adam_step({}, 5, 0.5);
      UpdateSpan span = states.span(), expected_span = expected.span();
      span.grad_sum = expected_span.grad_sum = sum.data();
      span.grads = expected_span.grads = nullptr;
      optim::adam_update(Isa::kScalar, expected_span, step);
      launch_adam(span, step);
      EXPECT_TRUE(states.same_bits(expected)) << compute_type_name(type) << " " << numel;
      launch_adam(ungiven.span(), step);  // negative control
      EXPECT_EQ(ungiven.same_bits(expected), numel == 0) << compute_type_name(type) << " " << numel;
    }
  }
}

// Negative control: the sum in another order is another sum.
TEST(AdamThread, TheOrderOfGradientsIsSeen) {
  for (ComputeType type : optim::kTypes) {
    Random random(8);
    States states(type, 4096, 3);
    states.fill(random);
    States reversed = states;
    std::swap(reversed.grads.front(), reversed.grads.back());
    const AdamStep step = optim::make_adam_step({}, 5, 0.5);
    optim::adam_update(Isa::kScalar, states.span(), step);
    launch_adam(reversed.span(), step);
    EXPECT_FALSE(reversed.same_bits(states)) << compute_type_name(type);
  }
}

// Negative control: one product and one sum in place of the last fused operation.
TEST(AdamThread, OneUnfusedOperationIsSeen) {
  Random random(9);
  States states(ComputeType::kFp32, 4096);
  states.fill(random);
  States unfused = states;
  const AdamStep step = optim::make_adam_step({}, 3, 1);
  const optim::AdamConstants<float> constants(step);
  launch_adam(states.span(), step);
  for (size_t i = 0; i < unfused.numel; ++i) {
    float grad, param;
    memcpy(&grad, unfused.grads[0].data() + i * sizeof grad, sizeof grad);
    memcpy(&param, unfused.param.data() + i * sizeof param, sizeof param);
    const float decayed = param * constants.decay;
    optim::adam_formula<float>(constants, grad, param, unfused.exp_avg[i], unfused.exp_avg_sq[i]);
    const float denom = optim::fused(optim::square_root(unfused.exp_avg_sq[i]),
                                     constants.inv_sqrt_bias2, constants.eps);
    const float update = constants.minus_step_size * (unfused.exp_avg[i] / denom);
    param = optim::one_nan(decayed + update);
    memcpy(unfused.param.data() + i * sizeof param, &param, sizeof param);
  }
  EXPECT_FALSE(states.same_bits(unfused));
  EXPECT_EQ(memcmp(states.exp_avg.data(), unfused.exp_avg.data(), 4096 * sizeof(float)), 0)
      << "only the parameters were computed otherwise";
}

}  // namespace
}  // namespace elixir::kernels
