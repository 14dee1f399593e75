// Compiled with -mavx2 -mfma -mf16c; run only where the processor has all three.

#include <immintrin.h>

#include "optim_cpu/gradient_lanes.h"

namespace elixir::optim {
namespace {

// Two registers of eight, so that a redo record is as long as with AVX-512.
struct Avx2Lanes {
  using Constants = AdamConstants<Avx2Lanes>;

  __m256 x, y;

  Avx2Lanes(__m256 first, __m256 second) : x(first), y(second) {}
  explicit Avx2Lanes(float value) : x(_mm256_set1_ps(value)), y(x) {}

  void keep() { asm("" : "+x"(x), "+x"(y)); }

  static __m128i load_8_words(const uint16_t* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  }
  static __m256 bf16_8(const uint16_t* from) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_8_words(from)), 16));
  }
  static __m256 join_8(const uint16_t* param, const uint16_t* low) {
    const __m256i low_words = _mm256_cvtepu16_epi32(load_8_words(low));
    const __m256i carried = _mm256_cmpgt_epi32(low_words, _mm256_set1_epi32(0x8000));  // -1 or 0
    const __m256i high = _mm256_add_epi32(_mm256_cvtepu16_epi32(load_8_words(param)), carried);
    return _mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32(high, 16), low_words));
  }
  // Each lane below 2^16.
  static void store_words(uint16_t* to, __m256i first, __m256i second) {
    const __m256i packed = _mm256_packus_epi32(first, second);  // by 128-bit halves: 0 2 1 3
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(packed, 0xd8));
  }
  static __m256i one_tie_8(__m256 master) {
    const __m256i bits = _mm256_castps_si256(master);
    const __m256i tie = _mm256_cmpeq_epi32(_mm256_and_si256(bits, _mm256_set1_epi32(0x1ffff)),
                                           _mm256_set1_epi32(0x18000));
    return _mm256_or_si256(bits, _mm256_and_si256(tie, _mm256_set1_epi32(1)));
  }
  static __m256i high_8(__m256i bits) {
    return _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), 16);
  }
  static __m256i low_8(__m256i bits) { return _mm256_and_si256(bits, _mm256_set1_epi32(0xffff)); }
  static __m256 one_nan_8(__m256 a) {
    return _mm256_blendv_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(kNanBits)),
                            _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  }

  static Avx2Lanes load(const float* from) {
    return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
  }
  static Avx2Lanes load_bf16(const uint16_t* from) { return {bf16_8(from), bf16_8(from + 8)}; }
  static Avx2Lanes load_half(const uint16_t* from) {
    return {_mm256_cvtph_ps(load_8_words(from)), _mm256_cvtph_ps(load_8_words(from + 8))};
  }
  static Avx2Lanes join_bf16(const uint16_t* param, const uint16_t* low) {
    return {join_8(param, low), join_8(param + 8, low + 8)};
  }

  void store(float* to) const {
    _mm256_storeu_ps(to, x);
    _mm256_storeu_ps(to + 8, y);
  }
  void store_half(uint16_t* to) const {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(x, kNearest));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 8), _mm256_cvtps_ph(y, kNearest));
  }
  void split_bf16(uint16_t* param, uint16_t* low) const {
    const __m256i first = one_tie_8(x), second = one_tie_8(y);  // adam_formula left one NaN only
    store_words(param, high_8(first), high_8(second));
    store_words(low, low_8(first), low_8(second));
  }

  friend Avx2Lanes add(const Avx2Lanes& a, const Avx2Lanes& b) {
    return {_mm256_add_ps(a.x, b.x), _mm256_add_ps(a.y, b.y)};
  }
  friend Avx2Lanes subtract(const Avx2Lanes& a, const Avx2Lanes& b) {
    return {_mm256_sub_ps(a.x, b.x), _mm256_sub_ps(a.y, b.y)};
  }
  friend Avx2Lanes multiply(const Avx2Lanes& a, const Avx2Lanes& b) {
    return {_mm256_mul_ps(a.x, b.x), _mm256_mul_ps(a.y, b.y)};
  }
  friend Avx2Lanes divide(const Avx2Lanes& a, const Avx2Lanes& b) {
    return {_mm256_div_ps(a.x, b.x), _mm256_div_ps(a.y, b.y)};
  }
  friend Avx2Lanes square_root(const Avx2Lanes& a) {
    return {_mm256_sqrt_ps(a.x), _mm256_sqrt_ps(a.y)};
  }
  friend Avx2Lanes fused(const Avx2Lanes& a, const Avx2Lanes& b, const Avx2Lanes& c) {
    return {_mm256_fmadd_ps(a.x, b.x, c.x), _mm256_fmadd_ps(a.y, b.y, c.y)};
  }
  friend Avx2Lanes one_nan(const Avx2Lanes& a) { return {one_nan_8(a.x), one_nan_8(a.y)}; }
};

struct Avx2Squares {
  __m256d sums[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(),
                     _mm256_setzero_pd()};

  // All bits of the lanes that are finite.
  static __m256 finite_8(__m256 a) {
    const __m256i infinity = _mm256_set1_epi32(0x7f800000);
    const __m256i exponent = _mm256_and_si256(_mm256_castps_si256(a), infinity);
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(infinity, exponent));
  }
  static unsigned add_8(__m256d& low, __m256d& high, __m256 a) {
    const __m256 finite = finite_8(a);
    a = _mm256_and_ps(a, finite);
    const __m256d first = _mm256_cvtps_pd(_mm256_castps256_ps128(a));
    const __m256d second = _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1));
    low = _mm256_fmadd_pd(first, first, low);
    high = _mm256_fmadd_pd(second, second, high);
    return 8 - static_cast<unsigned>(
                   __builtin_popcount(static_cast<unsigned>(_mm256_movemask_ps(finite))));
  }
  unsigned add(const Avx2Lanes& lanes) {
    return add_8(sums[0], sums[1], lanes.x) + add_8(sums[2], sums[3], lanes.y);
  }
  double total() const {
    const __m256d four = _mm256_add_pd(_mm256_add_pd(sums[0], sums[2]),   // l and l + 8,
                                       _mm256_add_pd(sums[1], sums[3]));  // then l and l + 4
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
  }
};

}  // namespace

void adam_update_avx2(const AdamSpan& span, const AdamStep& step, RedoRecord* redo,
                      uint64_t first_index) {
  update_typed<Avx2Lanes>(span, step, redo, first_index);
}

size_t take_leaves_avx2(const GradientSpan& span, size_t at, size_t numel, double* leaves) {
  return take_typed<Avx2Lanes, Avx2Squares>(span, at, numel, leaves);
}

}  // namespace elixir::optim
