// Every instruction set gives the bits of the scalar reference.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "base/compute_type_names.h"
#include "tests/optim_cpu/adam_checks.h"

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

// The tuples of one block through all instruction sets. Returns whether all bits are equal.
bool block_is_equal(ComputeType type, int n_grads, Random& random, Census& census) {
  States start(type, kBlockNumel, n_grads);
  start.fill(random);
  const AdamStep step = random_step(random);
  States reference = start;
  adam_update(Isa::kScalar, reference.span(), step);
  census.count(reference);
  for (Isa isa : supported_isas()) {
    if (isa == Isa::kScalar) continue;
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
      ASSERT_TRUE(block_is_equal(type, n_grads, random, census))
          << compute_type_name(type) << ", " << n_grads << " gradients, block "
          << census.tuples / kBlockNumel;
    }
    std::printf(
        "%s: %lu tuples, results: %lu NaN, %lu infinite, %lu denormal, %lu zero, %lu ties\n",
        compute_type_name(type), census.tuples, census.nan, census.infinite, census.denormal,
        census.zero, census.tie);
    census.expect_every_kind();
  }
}

TEST(EqualBits, OneUnfusedOperationIsSeen) {
  expect_one_unfused_operation_is_seen(
      [](const UpdateSpan& span, const AdamStep& step) { adam_update(best_isa(), span, step); });
}

// The bits of a thread that rounds upwards and flushes denormals are those of any other.
TEST(EqualBits, WhateverTheThreadsModes) {
  Random random(5);
  for (ComputeType type : kTypes) {
    States states(type, kBlockNumel);
    states.fill(random);
    const AdamStep step = make_adam_step({}, 3, 1);
    for (Isa isa : supported_isas()) {
      States expected = states, flushed = states;
      adam_update(isa, expected.span(), step);
      with_odd_modes([&] { adam_update(isa, flushed.span(), step); });
      EXPECT_TRUE(flushed.same_bits(expected)) << compute_type_name(type) << isa_name(isa);
    }
  }
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
