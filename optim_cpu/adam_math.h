#pragma once

// Adam, written once. The instruction sets differ only in their `Lanes`: a float here (the scalar
// reference, and CUDA), sixteen floats in the vector files. Bits are equal everywhere because every
// operation is one correctly rounded IEEE 754 operation, in this order. No other place may repeat
// or reorder it. Compiles as C++ and as CUDA and includes nothing of Elixir.
// Note: docs/design/elixir.md, "one arithmetic".

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define ELIXIR_MATH __host__ __device__ __forceinline__
#else
// Always inline: this header is compiled for several instruction sets. The linker could share a
// copy among them, with instructions that the processor does not have.
#define ELIXIR_MATH inline __attribute__((always_inline))
#endif

namespace elixir::optim {

// The constants of one step, rounded to FP32 once, so that every path uses the same ones.
struct AdamStep {
  float grad_scale;  // multiplies the (summed) gradient: 1 / (ranks * loss scale) * clip
  float decay;       // AdamW: 1 - lr*wd; else 1
  float l2;          // Adam: wd; else 0
  float beta1, one_minus_beta1;
  float beta2, one_minus_beta2;
  float step_size;       // lr / (1 - beta1^step)
  float inv_sqrt_bias2;  // 1 / sqrt(1 - beta2^step)
  float eps;
  uint64_t step;  // counts from 1; goes into the redo record
};

// The operations of the formula on one float. On a device they are intrinsics, which nvcc neither
// contracts nor approximates, whatever its flags.
#if defined(__CUDA_ARCH__)
ELIXIR_MATH float add(float a, float b) { return __fadd_rn(a, b); }
ELIXIR_MATH float subtract(float a, float b) { return __fsub_rn(a, b); }
ELIXIR_MATH float multiply(float a, float b) { return __fmul_rn(a, b); }
ELIXIR_MATH float divide(float a, float b) { return __fdiv_rn(a, b); }
ELIXIR_MATH float square_root(float a) { return __fsqrt_rn(a); }
ELIXIR_MATH float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
#else
ELIXIR_MATH float add(float a, float b) { return a + b; }
ELIXIR_MATH float subtract(float a, float b) { return a - b; }
ELIXIR_MATH float multiply(float a, float b) { return a * b; }
ELIXIR_MATH float divide(float a, float b) { return a / b; }
ELIXIR_MATH float square_root(float a) { return __builtin_sqrtf(a); }
ELIXIR_MATH float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }  // a*b + c
#endif

ELIXIR_MATH uint32_t float_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
ELIXIR_MATH float bits_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// A NaN has no sign and no payload here: processors and compilers disagree on which one survives.
inline constexpr uint32_t kNanBits = 0x7fc00000;
ELIXIR_MATH float one_nan(float value) { return value == value ? value : bits_float(kNanBits); }

// AdamStep with each constant in every lane.
template <class Lanes>
struct AdamConstants {
  ELIXIR_MATH explicit AdamConstants(const AdamStep& step)
      : grad_scale(step.grad_scale),
        decay(step.decay),
        l2(step.l2),
        one_minus_beta1(step.one_minus_beta1),
        beta2(step.beta2),
        one_minus_beta2(step.one_minus_beta2),
        minus_step_size(-step.step_size),
        inv_sqrt_bias2(step.inv_sqrt_bias2),
        eps(step.eps),
        has_l2(step.l2 != 0) {}

  Lanes grad_scale, decay, l2, one_minus_beta1, beta2, one_minus_beta2, minus_step_size,
      inv_sqrt_bias2, eps;
  bool has_l2;
};

// One step of Adam or AdamW (Kingma and Ba 2015, algorithm 1; Loshchilov and Hutter 2019, algorithm
// 2; in torch.optim's arrangement). `grad` is the sum over ranks, taken in rank order, not yet
// scaled. L2 is left out if it is zero, since 0 * inf would be NaN. The multiplication by `decay`
// is never left out, since 1 * x is x.
template <class Lanes>
ELIXIR_MATH void adam_formula(const AdamConstants<Lanes>& step, Lanes grad, Lanes& param,
                              Lanes& exp_avg, Lanes& exp_avg_sq) {
  grad = multiply(grad, step.grad_scale);
  if (step.has_l2) grad = fused(step.l2, param, grad);
  param = multiply(param, step.decay);
  exp_avg = one_nan(fused(step.one_minus_beta1, subtract(grad, exp_avg), exp_avg));
  const Lanes grad_sq = multiply(step.one_minus_beta2, multiply(grad, grad));
  exp_avg_sq = one_nan(fused(step.beta2, exp_avg_sq, grad_sq));
  const Lanes denom = fused(square_root(exp_avg_sq), step.inv_sqrt_bias2, step.eps);
  param = one_nan(fused(step.minus_step_size, divide(exp_avg, denom), param));
}

}  // namespace elixir::optim
