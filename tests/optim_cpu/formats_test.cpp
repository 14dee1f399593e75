// The 16-bit types: the functions of formats.h over all floats, and the kernels' own conversions
// against them.

#include "optim_cpu/formats.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <thread>

#include "base/compute_type_names.h"
#include "optim_cpu/master.h"
#include "tests/optim_cpu/states.h"
#include "tests/support/every_case.h"

namespace elixir::optim {
namespace {

constexpr uint64_t kFloats = uint64_t{1} << 32;
constexpr size_t kBlockNumel = 1 << 14;

// Constants with which adam_update stores -exp_avg as the new master where that was -0, and leaves
// the master where exp_avg is 0.
AdamStep negating_step() {
  AdamStep step = {};
  step.grad_scale = step.decay = step.beta2 = step.eps = step.step_size = 1;
  step.one_minus_beta1 = -0.0f;  // keeps the sign of an exp_avg that is zero
  return step;
}

States minus_zeros(ComputeType type) {
  States states(type, kBlockNumel);
  const std::vector<float> values(kBlockNumel, -0.0f);
  load_master(type, values.data(), kBlockNumel, states.param.data(), states.master.data());
  return states;
}

// The floats with bits [begin, begin + kBlockNumel) as masters, through the kernel of `isa`.
// The result lives until the thread's next call: this runs for all floats.
States& masters_through_kernel(ComputeType type, Isa isa, uint64_t begin) {
  thread_local const States minus_zeros_of[] = {minus_zeros(ComputeType::kBf16),
                                                minus_zeros(ComputeType::kFp16)};
  thread_local States states(type, 0);
  states = minus_zeros_of[type == ComputeType::kBf16 ? 0 : 1];
  for (size_t i = 0; i < kBlockNumel; ++i) {
    states.exp_avg[i] = bits_float(static_cast<uint32_t>(begin + i) ^ 0x80000000);
  }
  adam_update(isa, states.span(), negating_step());
  return states;
}

bool is_infinite(uint32_t bits) { return (bits & 0x7fffffff) == 0x7f800000; }

// One block in eight, unless every one is asked for.
uint64_t usual_stride() { return every_case() ? 1 : 8; }

// Calls check(begin) for blocks of all floats, one in `stride` of the usual ones, on two threads;
// stops at the first false.
template <class Check>
void for_all_floats(Check check, uint64_t stride = 1) {
  std::atomic<uint64_t> next = 0;
  std::atomic<bool> failed = false;
  const uint64_t step = kBlockNumel * stride * usual_stride() * kShare;
  auto work = [&] {
    while (!failed) {
      const uint64_t begin = next.fetch_add(step);
      if (begin >= kFloats) return;
      if (!check(begin)) failed = true;
    }
  };
  std::thread other(work);
  work();
  other.join();
  EXPECT_FALSE(failed);
}

// What a split must be, said otherwise: nearest even, and nothing lost but a tie's last bit.
bool split_is_right(uint32_t bits) {
  const float value = bits_float(bits);
  const SplitBf16 halves = split_bf16(value);
  const uint32_t joined = float_bits(join_bf16(halves.param, halves.low));
  uint32_t expected = (bits & 0x1ffff) == 0x18000 ? bits | 1 : bits;
  uint32_t nearest = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  if (std::isnan(value)) {
    expected = 0x7fc00000;
    nearest = 0x7fc0;
  }
  return joined == expected && halves.param == nearest;
}

TEST(Bf16, SplitOfEveryFloatIsNearestEvenAndLosesNothing) {
  for_all_floats([](uint64_t begin) {
    for (uint64_t bits = begin; bits < begin + kBlockNumel; ++bits) {
      if (split_is_right(static_cast<uint32_t>(bits))) continue;
      ADD_FAILURE() << std::hex << bits;
      return false;
    }
    return true;
  });
}

// Negative control: without the tie rule a float in 131072 does not come back.
TEST(Bf16, WithoutTheTieRuleTiesAreLost) {
  const uint32_t bits = 0x3f818000;  // between 0x3f81 and 0x3f82: nearest even is above
  const auto param = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  EXPECT_EQ(param, 0x3f82);
  EXPECT_NE(float_bits(join_bf16(param, bits & 0xffff)), bits);
  EXPECT_EQ(float_bits(join_bf16(split_bf16(bits_float(bits)).param, 0x8001)), bits | 1);
}

TEST(Bf16, KernelsSplitAndJoinEveryFloatAsTheFunctionsDo) {
  for_all_floats([](uint64_t begin) {
    uint16_t param[kBlockNumel], low[kBlockNumel];
    for (size_t i = 0; i < kBlockNumel; ++i) {
      const auto bits = static_cast<uint32_t>(begin + i);
      // 0 * inf on the way makes a NaN of an infinite exp_avg.
      const SplitBf16 halves = split_bf16(bits_float(is_infinite(bits) ? kNanBits : bits));
      param[i] = halves.param;
      low[i] = halves.low;
    }
    for (Isa isa : kIsas) {
      if (!isa_supported(isa) || (isa == Isa::kScalar && begin % (64 * kBlockNumel) != 0)) continue;
      States& states = masters_through_kernel(ComputeType::kBf16, isa, begin);
      // Split, then joined and split once more with nothing added.
      for (int pass = 0; pass < 2; ++pass) {
        if (pass == 1) {
          std::fill(states.exp_avg.begin(), states.exp_avg.end(), 0.0f);
          adam_update(isa, states.span(), negating_step());
        }
        if (std::memcmp(states.param.data(), param, states.param.size()) != 0 ||
            std::memcmp(states.master.data(), low, states.master.size()) != 0) {
          ADD_FAILURE() << isa_name(isa) << std::hex << " block " << begin << " pass " << pass;
          return false;
        }
      }
    }
    return true;
  });
}

TEST(Half, KernelsRoundFloatsAsTheFunctionDoes) {
  auto check = [](uint64_t begin) {
    uint16_t param[kBlockNumel];
    for (size_t i = 0; i < kBlockNumel; ++i) {
      const auto bits = static_cast<uint32_t>(begin + i);
      param[i] = float_to_half(bits_float(is_infinite(bits) ? kNanBits : bits));
    }
    for (Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
      if (!isa_supported(isa)) continue;
      const States& states = masters_through_kernel(ComputeType::kFp16, isa, begin);
      if (std::memcmp(states.param.data(), param, states.param.size()) == 0) continue;
      ADD_FAILURE() << isa_name(isa) << std::hex << " block " << begin;
      return false;
    }
    return true;
  };
  for_all_floats(check, 8);  // a block spans two halves: each kind of rounding is in each
}

double half_value(uint16_t half) {
  const int exponent = half >> 10 & 31, fraction = half & 1023;
  const double magnitude = exponent == 0   ? std::ldexp(fraction, -24)
                           : exponent < 31 ? std::ldexp(1024 + fraction, exponent - 25)
                                           : std::ldexp(1, 16);  // where infinity begins to round
  return half & 0x8000 ? -magnitude : magnitude;
}

// Against arithmetic in double: each half, the middle to its neighbour, and the floats around it.
TEST(Half, IsNearestEven) {
  for (uint32_t half = 0; half < 0x7c00; ++half) {
    const auto low = static_cast<uint16_t>(half), high = static_cast<uint16_t>(half + 1);
    EXPECT_EQ(half_to_float(low), half_value(low));
    EXPECT_EQ(half_to_float(low | 0x8000), half_value(low | 0x8000));
    const auto middle = static_cast<float>((half_value(low) + half_value(high)) / 2);
    EXPECT_EQ(float_to_half(half_to_float(low)), low);
    EXPECT_EQ(float_to_half(middle), half % 2 == 0 ? low : high);
    EXPECT_EQ(float_to_half(-middle), (half % 2 == 0 ? low : high) | 0x8000);
    EXPECT_EQ(float_to_half(std::nextafter(middle, 0.0f)), low);
    EXPECT_EQ(float_to_half(std::nextafter(middle, 1e9f)), high);
  }
  EXPECT_EQ(float_to_half(INFINITY), 0x7c00);
  EXPECT_EQ(float_to_half(-NAN), 0x7e00);
  EXPECT_EQ(half_to_float(0xfc00), -INFINITY);
  EXPECT_EQ(float_bits(half_to_float(0xfc01)), kNanBits);
}

TEST(Half, KernelsReadEveryGradientAsTheFunctionDoes) {
  AdamStep step = negating_step();
  step.one_minus_beta1 = 1;  // exp_avg becomes the gradient
  for (Isa isa : kIsas) {
    if (!isa_supported(isa)) continue;
    States states(ComputeType::kFp16, 65536);
    for (uint32_t i = 0; i < 65536; ++i) {
      const auto half = static_cast<uint16_t>(i);
      std::memcpy(states.grads[0].data() + 2 * i, &half, sizeof half);
    }
    adam_update(isa, states.span(), step);
    for (uint32_t i = 0; i < 65536; ++i) {
      const float expected = half_to_float(static_cast<uint16_t>(i));
      ASSERT_EQ(float_bits(states.exp_avg[i]), float_bits(expected + 0.0f)) << isa_name(isa) << i;
    }
  }
}

TEST(Master, ComesBackFromEveryType) {
  Random random(1);
  std::vector<float> values(1000), back(values.size());
  for (float& value : values) value = bits_float(random.float_of_any_kind());
  for (ComputeType type : kTypes) {
    States states(type, values.size());
    load_master(type, values.data(), values.size(), states.param.data(), states.master.data());
    read_master(type, states.param.data(), states.master.data(), values.size(), back.data());
    for (size_t i = 0; i < values.size(); ++i) {
      const SplitBf16 halves = split_bf16(values[i]);
      const float expected =
          type == ComputeType::kBf16 ? join_bf16(halves.param, halves.low) : values[i];
      ASSERT_EQ(float_bits(back[i]), float_bits(expected)) << compute_type_name(type);
    }
  }
}

}  // namespace
}  // namespace elixir::optim
