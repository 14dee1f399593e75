// Every instruction set gives the bits of the scalar reference.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "base/compute_type_names.h"
#include "optim_cpu/formats.h"
#include "optim_cpu/master.h"
#include "tests/optim_cpu/states.h"

namespace elixir::optim {
namespace {

constexpr size_t kBlockNumel = 4096;

AdamStep random_step(Random& random) {
  AdamOptions options;
  options.lr = random.below(4) == 0 ? 0 : 1e-4 * static_cast<double>(1 + random.below(1000));
  options.beta1 = random.below(8) == 0 ? 0 : 0.9;
  options.beta2 = random.below(8) == 0 ? 0.5 : 0.999;
  options.eps = random.below(8) == 0 ? 0 : 1e-8;
  options.weight_decay = random.below(3) == 0 ? 0 : 0.1;
  options.rule = random.below(2) == 0 ? UpdateRule::kAdamW : UpdateRule::kAdam;
  const double grad_scale = random.below(2) == 0 ? 1 : 0.37;
  return make_adam_step(options, 1 + random.below(random.below(2) == 0 ? 10 : 100000), grad_scale);
}

// What a run met, so that a test cannot pass on dull numbers.
struct Census {
  uint64_t tuples = 0, nan = 0, infinite = 0, denormal = 0, zero = 0, tie = 0;

  void count(const States& states) {
    tuples += states.numel;
    std::vector<float> masters(states.numel);
    read_master(states.type, states.param.data(), states.master.data(), states.numel,
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

// The tuples of one block through all instruction sets. Returns whether all bits are equal.
bool block_is_equal(ComputeType type, int n_grads, Random& random, Census* census) {
  States start(type, kBlockNumel, n_grads);
  start.fill(random);
  const AdamStep step = random_step(random);
  States reference = start;
  adam_update(Isa::kScalar, reference.span(), step);
  if (census != nullptr) census->count(reference);
  for (Isa isa : kIsas) {
    if (isa == Isa::kScalar || !isa_supported(isa)) continue;
    States states = start;
    RedoRecord redo = {};
    adam_update(isa, states.span(), step, random.below(2) == 0 ? &redo : nullptr);
    if (!states.same_bits(reference)) return false;
  }
  return true;
}

TEST(EqualBits, HundredMillionTuples) {
  constexpr uint64_t kTuples = 100'000'000 / kShare;
  for (ComputeType type : kTypes) {
    Random random(7 + static_cast<uint64_t>(type));
    Census census;
    while (census.tuples < kTuples / 3 + 1) {
      // One block in four sums the gradients of 2 to 8 ranks.
      const int n_grads = random.below(4) == 0 ? 2 + static_cast<int>(random.below(7)) : 1;
      ASSERT_TRUE(block_is_equal(type, n_grads, random, &census))
          << compute_type_name(type) << ", " << n_grads << " gradients, block "
          << census.tuples / kBlockNumel;
    }
    std::printf(
        "%s: %lu tuples, results: %lu NaN, %lu infinite, %lu denormal, %lu zero, %lu ties\n",
        compute_type_name(type), census.tuples, census.nan, census.infinite, census.denormal,
        census.zero, census.tie);
    const uint64_t enough = census.tuples / 1000;
    EXPECT_GT(census.nan, enough);
    EXPECT_GT(census.infinite, enough);
    EXPECT_GT(census.denormal, enough);
    EXPECT_GT(census.zero, enough);
    EXPECT_GT(census.tie, enough);
    EXPECT_GT(census.tuples, census.nan * 2) << "mostly NaN: nothing is compared";
  }
}

// Negative control: a formula with one multiplication and one addition in place of an FMA is told
// from the reference by the same comparison.
TEST(EqualBits, OneUnfusedOperationIsSeen) {
  Random random(3);
  States states(ComputeType::kFp32, kBlockNumel);
  states.fill(random);
  const AdamStep step = make_adam_step({}, 3, 1);
  States unfused = states;
  const AdamConstants<float> constants(step);
  for (size_t i = 0; i < kBlockNumel; ++i) {
    float grad, param;
    std::memcpy(&grad, states.grads[0].data() + i * sizeof grad, sizeof grad);
    std::memcpy(&param, states.param.data() + i * sizeof param, sizeof param);
    const float old_param = param;
    adam_formula<float>(constants, grad, param, unfused.exp_avg[i], unfused.exp_avg_sq[i]);
    const float denom =
        fused(square_root(unfused.exp_avg_sq[i]), constants.inv_sqrt_bias2, constants.eps);
    const float update = constants.minus_step_size * (unfused.exp_avg[i] / denom);
    param = one_nan(old_param * constants.decay + update);
    std::memcpy(unfused.param.data() + i * sizeof param, &param, sizeof param);
  }
  adam_update(best_isa(), states.span(), step);
  EXPECT_FALSE(states.same_bits(unfused));
  EXPECT_EQ(std::memcmp(states.exp_avg.data(), unfused.exp_avg.data(), kBlockNumel * 4), 0)
      << "only the parameters were computed otherwise";
}

// The bits of a thread that rounds upwards and flushes denormals are those of any other.
TEST(EqualBits, WhateverTheThreadsModes) {
#if defined(__x86_64__)
  Random random(5);
  for (ComputeType type : kTypes) {
    States states(type, kBlockNumel);
    states.fill(random);
    const AdamStep step = make_adam_step({}, 3, 1);
    for (Isa isa : kIsas) {
      if (!isa_supported(isa)) continue;
      States expected = states, flushed = states;
      adam_update(isa, expected.span(), step);
      const unsigned before = _mm_getcsr();
      const unsigned odd = before | 0x8040 | 0x4000;  // FTZ, DAZ, round up
      _mm_setcsr(odd);
      adam_update(isa, flushed.span(), step);
      const unsigned after = _mm_getcsr();
      _mm_setcsr(before);
      EXPECT_EQ(after & ~0x3fU, odd & ~0x3fU) << "the thread's modes are given back";
      EXPECT_TRUE(flushed.same_bits(expected)) << compute_type_name(type) << isa_name(isa);
    }
  }
#else
  GTEST_SKIP() << "x86's modes";
#endif
}

TEST(Isa, NamesAreThoseOfTheEnvironmentVariable) {
  for (Isa isa : kIsas) EXPECT_EQ(*parse_name(kIsaNames, isa_name(isa)), isa);
  EXPECT_FALSE(parse_name(kIsaNames, "sse").ok());
}

// One that a virtual machine masks is one too few: its instruction would end the process.
TEST(Isa, NeedsEveryFeatureThatItsFileIsCompiledWith) {
  const CpuFeatures all{.avx2 = true, .fma = true, .f16c = true, .avx512f = true};
  for (Isa isa : kIsas) EXPECT_TRUE(isa_supported(isa, all)) << isa_name(isa);
  for (bool CpuFeatures::*const masked :
       {&CpuFeatures::avx2, &CpuFeatures::fma, &CpuFeatures::f16c, &CpuFeatures::avx512f}) {
    CpuFeatures features = all;
    features.*masked = false;
    EXPECT_TRUE(isa_supported(Isa::kScalar, features));
    EXPECT_EQ(isa_supported(Isa::kAvx2, features), masked == &CpuFeatures::avx512f);
    EXPECT_FALSE(isa_supported(Isa::kAvx512, features));
  }
}

// Run with ELIXIR_ISA set by CMakeLists.txt as well as without it.
TEST(Isa, BestIsNoBetterThanTheEnvironmentAsks) {
  const char* const name = std::getenv("ELIXIR_ISA");
  const Isa wanted = name == nullptr ? Isa::kAvx512 : *parse_name(kIsaNames, name);
  EXPECT_TRUE(isa_supported(best_isa()));
  EXPECT_LE(best_isa(), wanted);
  if (isa_supported(wanted)) {
    EXPECT_EQ(best_isa(), wanted);
  }
}

}  // namespace
}  // namespace elixir::optim
