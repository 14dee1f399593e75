#pragma once

// References for an update: the formula element by element, a different formula, and a count of the
// kinds of numbers.

#include <gtest/gtest.h>

#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "optim_cpu/formats.h"
#include "optim_cpu/master.h"
#include "tests/optim_cpu/states.h"

namespace elixir::optim {

inline std::vector<Isa> supported_isas() {
  std::vector<Isa> isas;
  for (const Isa isa : kIsas) {
    if (isa_supported(isa)) isas.push_back(isa);
  }
  return isas;
}

inline float element(ComputeType type, const void* values, size_t at) {
  if (type == ComputeType::kFp32) return static_cast<const float*>(values)[at];
  const uint16_t word = static_cast<const uint16_t*>(values)[at];
  return type == ComputeType::kBf16 ? bf16_to_float(word) : half_to_float(word);
}

// The sum over ranks, in their order.
inline float summed(ComputeType type, const void* const* grads, int n_grads, size_t at) {
  float sum = element(type, grads[0], at);
  for (int rank = 1; rank < n_grads; ++rank) sum += element(type, grads[rank], at);
  return sum;
}

// The expected result of a span, computed with the functions of the headers alone.
inline void update_one_by_one(const UpdateSpan& span, const AdamStep& step) {
  const AdamConstants<float> constants(step);
  for (size_t i = 0; i < span.numel; ++i) {
    const float grad = span.grad_sum != nullptr ? span.grad_sum[i]
                                                : summed(span.type, span.grads, span.n_grads, i);
    std::byte* const param = static_cast<std::byte*>(span.param) + i * element_bytes(span.type);
    std::byte* const master = static_cast<std::byte*>(span.master) + i * master_bytes(span.type);
    float value;
    read_master(span.type, param, master, 1, &value);
    adam_formula<float>(constants, grad, value, span.moments[0][i], span.moments[1][i]);
    load_master(span.type, &value, 1, param, master);
  }
}

// Negative control of comparisons: AdamW in FP32 with one product and one sum in place of its last
// fused operation. `update` must give other parameters and equal moments.
template <class Update>
void expect_one_unfused_operation_is_seen(const Update& update) {
  Random random(3);
  States states(ComputeType::kFp32, 4096);
  states.fill(random);
  States unfused = states;
  const AdamStep step = make_adam_step({}, 3, 1);
  const AdamConstants<float> constants(step);
  const UpdateSpan span = unfused.span();
  auto* const params = static_cast<float*>(span.param);
  for (size_t i = 0; i < unfused.numel; ++i) {
    const float decayed = params[i] * constants.decay;
    adam_formula<float>(constants, element(span.type, span.grads[0], i), params[i],
                        unfused.exp_avg[i], unfused.exp_avg_sq[i]);
    const float denom =
        fused(square_root(unfused.exp_avg_sq[i]), constants.inv_sqrt_bias2, constants.eps);
    params[i] = one_nan(decayed + constants.minus_step_size * (unfused.exp_avg[i] / denom));
  }
  update(states.span(), step);
  EXPECT_FALSE(states.same_bits(unfused));
  std::memcpy(unfused.param.data(), states.param.data(), states.param.size());
  EXPECT_TRUE(states.same_bits(unfused)) << "only the parameters were computed otherwise";
}

// Runs `work` while the thread rounds upwards and flushes denormals, where that can be set.
template <class Work>
void with_odd_modes(const Work& work) {
#if defined(__x86_64__)
  const unsigned before = _mm_getcsr();
  const unsigned odd = before | 0x8040 | 0x4000;  // FTZ, DAZ, round up
  _mm_setcsr(odd);
  work();
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  EXPECT_EQ(after & ~0x3fU, odd & ~0x3fU) << "the thread's modes are given back";
#else
  work();
#endif
}

// Counts the kinds of resulting masters, so that a test cannot pass on dull numbers.
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

  void expect_every_kind() const {
    for (const uint64_t kind : {nan, infinite, denormal, zero, tie}) EXPECT_GT(kind, tuples / 1000);
    EXPECT_GT(tuples, nan * 2) << "mostly NaN: nothing is compared";
  }
};

}  // namespace elixir::optim
