#pragma once

// Loads, conversions and stores of a few consecutive elements, on a device. The host has them, too,
// so that their bits are tested everywhere. Compiles as C++ and as CUDA.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/compute_type.h"
#include "optim_cpu/formats.h"

namespace elixir::kernels {

// Elements that a thread takes at a time: 16 bytes of floats, 8 of a 16-bit type. With more, one
// warp's access to the floats would not be contiguous.
inline constexpr int kVectorNumel = 4;

template <class T, int kNumel>
struct Pack {
  T lane[kNumel];
};

#if defined(__CUDA_ARCH__)
template <size_t kBytes>
struct WordOf;
template <>
struct WordOf<2> {
  using Type = unsigned short;
};
template <>
struct WordOf<4> {
  using Type = unsigned;
};
template <>
struct WordOf<8> {
  using Type = uint2;
};
template <>
struct WordOf<16> {
  using Type = uint4;
};
#endif

// One access of the memory, which must be aligned to the pack's size. A launch reads or writes
// everything here once. So on a device, these bytes are the first to leave the caches.
template <int kNumel, class T>
ELIXIR_MATH Pack<T, kNumel> load(const T* from) {
  Pack<T, kNumel> pack;
#if defined(__CUDA_ARCH__)
  using Word = typename WordOf<sizeof pack>::Type;
  const Word word = __ldcs(reinterpret_cast<const Word*>(from));
  memcpy(&pack, &word, sizeof pack);
#else
  memcpy(&pack, from, sizeof pack);
#endif
  return pack;
}

template <int kNumel, class T>
ELIXIR_MATH void store(T* to, const Pack<T, kNumel>& pack) {
#if defined(__CUDA_ARCH__)
  using Word = typename WordOf<sizeof pack>::Type;
  Word word;
  memcpy(&word, &pack, sizeof pack);
  __stcs(reinterpret_cast<Word*>(to), word);
#else
  memcpy(to, &pack, sizeof pack);
#endif
}

ELIXIR_MATH bool is_finite(float value) {
  return (optim::float_bits(value) & 0x7f800000) != 0x7f800000;
}

// How a parameter or gradient of each type lies in memory. The FP32 master is made of the parameter
// and of its completion (optim_cpu/adam.h).
template <ComputeType kType>
struct Format;

template <>
struct Format<ComputeType::kBf16> {
  using Element = uint16_t;
  using Completion = uint16_t;
  ELIXIR_MATH static float widen(Element value) { return optim::bf16_to_float(value); }
  ELIXIR_MATH static Element narrow(float value) { return optim::split_bf16(value).param; }
};

template <>
struct Format<ComputeType::kFp16> {
  using Element = uint16_t;
  using Completion = float;
#if defined(__CUDA_ARCH__)
  // The device's own conversions follow IEEE 754, too, and take a tenth of the instructions. The
  // gpu tests compare them with formats.h. They have another NaN.
  ELIXIR_MATH static float widen(Element value) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value));
    return optim::one_nan(wide);
  }
  ELIXIR_MATH static Element narrow(float value) {
    Element half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return value == value ? half : 0x7e00;
  }
#else
  ELIXIR_MATH static float widen(Element value) { return optim::half_to_float(value); }
  ELIXIR_MATH static Element narrow(float value) { return optim::float_to_half(value); }
#endif
};

template <>
struct Format<ComputeType::kFp32> {
  using Element = float;
  using Completion = float;  // unused
  ELIXIR_MATH static float widen(Element value) { return value; }
  ELIXIR_MATH static Element narrow(float value) { return value; }
};

template <ComputeType kType>
using ElementOf = typename Format<kType>::Element;
template <ComputeType kType>
using CompletionOf = typename Format<kType>::Completion;

template <ComputeType kType, int kNumel>
ELIXIR_MATH Pack<float, kNumel> load_widened(const ElementOf<kType>* from) {
  const Pack<ElementOf<kType>, kNumel> narrow = load<kNumel>(from);
  Pack<float, kNumel> wide;
  for (int i = 0; i < kNumel; ++i) wide.lane[i] = Format<kType>::widen(narrow.lane[i]);
  return wide;
}

template <ComputeType kType, int kNumel>
ELIXIR_MATH void store_narrowed(ElementOf<kType>* to, const Pack<float, kNumel>& wide) {
  Pack<ElementOf<kType>, kNumel> narrow;
  for (int i = 0; i < kNumel; ++i) narrow.lane[i] = Format<kType>::narrow(wide.lane[i]);
  store<kNumel>(to, narrow);
}

// The masters of kNumel parameters from `at` on. With FP32 `completion` is not touched and may be
// null.
template <ComputeType kType, int kNumel>
ELIXIR_MATH Pack<float, kNumel> load_master(const ElementOf<kType>* param,
                                            const CompletionOf<kType>* completion, size_t at) {
  if constexpr (kType == ComputeType::kFp32) return load<kNumel>(param + at);
  if constexpr (kType == ComputeType::kFp16) return load<kNumel>(completion + at);
  if constexpr (kType == ComputeType::kBf16) {
    const Pack<uint16_t, kNumel> high = load<kNumel>(param + at),
                                 low = load<kNumel>(completion + at);
    Pack<float, kNumel> master;
    for (int i = 0; i < kNumel; ++i) {
      master.lane[i] = optim::join_bf16(high.lane[i], low.lane[i]);
    }
    return master;
  }
}

template <ComputeType kType, int kNumel>
ELIXIR_MATH void store_master(const Pack<float, kNumel>& master, ElementOf<kType>* param,
                              CompletionOf<kType>* completion, size_t at) {
  if constexpr (kType == ComputeType::kFp32) store(param + at, master);
  if constexpr (kType == ComputeType::kFp16) {
    store_narrowed<kType>(param + at, master);
    store(completion + at, master);
  }
  if constexpr (kType == ComputeType::kBf16) {
    Pack<uint16_t, kNumel> high, low;
    for (int i = 0; i < kNumel; ++i) {
      const optim::SplitBf16 halves = optim::split_bf16(master.lane[i]);
      high.lane[i] = halves.param;
      low.lane[i] = halves.low;
    }
    store(param + at, high);
    store(completion + at, low);
  }
}

}  // namespace elixir::kernels
