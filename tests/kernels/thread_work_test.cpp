// What the element-wise kernels do a thread, done here by the host for every thread of a launch:
// the bits are those of optim_cpu.

#include "kernels/thread_work.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/compute_type_names.h"
#include "tests/kernels/adam_cases.h"
#include "tests/optim_cpu/adam_checks.h"

namespace elixir::kernels {
namespace {

using optim::AdamStep;
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

TEST(AdamThread, MillionsOfTuplesHaveTheScalarReferencesBits) {
  constexpr uint64_t kTuples = 3'000'000 / optim::kShare;
  const std::vector<AdamStep> steps = optim::adam_steps();
  for (ComputeType type : optim::kTypes) {
    Random random(11 + static_cast<uint64_t>(type));
    optim::Census census;
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
    census.expect_every_kind();
  }
}

void update_states(States& states, size_t at, size_t numel, const float* sum,
                   const AdamStep& step) {
  launch_adam(optim::span_of(states.span(at, numel), sum), step);
}

TEST(AdamThread, AnyLengthOfGradientsOrOfTheirSumOverRounds) {
  optim::check_any_length(kLengths, update_states);
}

TEST(AdamThread, AnotherSumOrConstantIsSeen) {
  optim::check_another_sum_or_constant_is_seen(update_states);
}

TEST(AdamThread, OneUnfusedOperationIsSeen) {
  optim::expect_one_unfused_operation_is_seen(launch_adam);
}

}  // namespace
}  // namespace elixir::kernels
