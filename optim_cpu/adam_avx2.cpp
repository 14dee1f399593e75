// Compiled with -mavx2 -mfma -mf16c; run only where the processor has all three.

#include <immintrin.h>

#include "optim_cpu/gradient_lanes.h"

namespace elixir::optim {
namespace {

// Eight floats: what the formula is computed on.
struct Eight {
  __m256 x;

  Eight(__m256 lanes) : x(lanes) {}  // NOLINT: a name for the same thing
  explicit Eight(float value) : x(_mm256_set1_ps(value)) {}

  static __m128i load_words(const uint16_t* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  }
  static Eight load(const float* from) { return _mm256_loadu_ps(from); }
  static Eight load_bf16(const uint16_t* from) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_words(from)), 16));
  }
  static Eight load_half(const uint16_t* from) { return _mm256_cvtph_ps(load_words(from)); }
  static Eight join_bf16(const uint16_t* param, const uint16_t* low) {
    const __m256i low_words = _mm256_cvtepu16_epi32(load_words(low));
    const __m256i carried = _mm256_cmpgt_epi32(low_words, _mm256_set1_epi32(0x8000));  // -1 or 0
    const __m256i high = _mm256_add_epi32(_mm256_cvtepu16_epi32(load_words(param)), carried);
    return _mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32(high, 16), low_words));
  }

  template <Via kVia>
  void store(float* to) const {
    kVia == Via::kMemory ? _mm256_stream_ps(to, x) : _mm256_storeu_ps(to, x);
  }
  __m128i half() const { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

  // Of a master whose NaN is the one of adam_formula: with the bit that a tie needs, formats.h.
  __m256i one_tie() const {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i tie = _mm256_cmpeq_epi32(_mm256_and_si256(bits, _mm256_set1_epi32(0x1ffff)),
                                           _mm256_set1_epi32(0x18000));
    return _mm256_or_si256(bits, _mm256_and_si256(tie, _mm256_set1_epi32(1)));
  }
  static __m256i high(__m256i bits) {
    return _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), 16);
  }
  static __m256i low(__m256i bits) { return _mm256_and_si256(bits, _mm256_set1_epi32(0xffff)); }

  friend Eight add(Eight a, Eight b) { return _mm256_add_ps(a.x, b.x); }
  friend Eight subtract(Eight a, Eight b) { return _mm256_sub_ps(a.x, b.x); }
  friend Eight multiply(Eight a, Eight b) { return _mm256_mul_ps(a.x, b.x); }
  friend Eight divide(Eight a, Eight b) { return _mm256_div_ps(a.x, b.x); }
  friend Eight square_root(Eight a) { return _mm256_sqrt_ps(a.x); }
  friend Eight fused(Eight a, Eight b, Eight c) { return _mm256_fmadd_ps(a.x, b.x, c.x); }
  friend Eight one_nan(Eight a) {
    return _mm256_blendv_ps(a.x, _mm256_castsi256_ps(_mm256_set1_epi32(kNanBits)),
                            _mm256_cmp_ps(a.x, a.x, _CMP_UNORD_Q));
  }
};

// Two registers of eight, so that a redo record is as long as with AVX-512. Constants are of eight:
// of sixteen they would fill the registers twice over.
struct Avx2Lanes {
  using Constants = AdamConstants<Eight>;

  Eight a, b;

  void keep() { asm("" : "+x"(a.x), "+x"(b.x)); }

  static Avx2Lanes load(const float* from) { return {Eight::load(from), Eight::load(from + 8)}; }
  static Avx2Lanes load_bf16(const uint16_t* from) {
    return {Eight::load_bf16(from), Eight::load_bf16(from + 8)};
  }
  static Avx2Lanes load_half(const uint16_t* from) {
    return {Eight::load_half(from), Eight::load_half(from + 8)};
  }
  static Avx2Lanes join_bf16(const uint16_t* param, const uint16_t* low) {
    return {Eight::join_bf16(param, low), Eight::join_bf16(param + 8, low + 8)};
  }

  template <Via kVia>
  static void store_bytes(uint16_t* to, __m256i words) {
    auto* const address = reinterpret_cast<__m256i*>(to);
    kVia == Via::kMemory ? _mm256_stream_si256(address, words)
                         : _mm256_storeu_si256(address, words);
  }
  static void end_stores() { _mm_sfence(); }

  template <Via kVia = Via::kCaches>
  void store(float* to) const {
    a.store<kVia>(to);
    b.store<kVia>(to + 8);
  }
  template <Via kVia = Via::kCaches>
  void store_half(uint16_t* to) const {
    store_bytes<kVia>(to, _mm256_set_m128i(b.half(), a.half()));
  }
  // Each lane below 2^16.
  template <Via kVia>
  static void store_words(uint16_t* to, __m256i first, __m256i second) {
    const __m256i packed = _mm256_packus_epi32(first, second);  // by 128-bit halves: 0 2 1 3
    store_bytes<kVia>(to, _mm256_permute4x64_epi64(packed, 0xd8));
  }
  template <Via kVia = Via::kCaches>
  void split_bf16(uint16_t* param, uint16_t* low) const {
    const __m256i first = a.one_tie(), second = b.one_tie();
    store_words<kVia>(param, Eight::high(first), Eight::high(second));
    store_words<kVia>(low, Eight::low(first), Eight::low(second));
  }

  friend Avx2Lanes add(Avx2Lanes one, Avx2Lanes other) {
    return {add(one.a, other.a), add(one.b, other.b)};
  }
  friend Avx2Lanes one_nan(Avx2Lanes one) { return {one_nan(one.a), one_nan(one.b)}; }
};

ELIXIR_MATH void adam_formula(const AdamConstants<Eight>& step, Avx2Lanes grad, Avx2Lanes& param,
                              Avx2Lanes& exp_avg, Avx2Lanes& exp_avg_sq) {
  adam_formula(step, grad.a, param.a, exp_avg.a, exp_avg_sq.a);
  adam_formula(step, grad.b, param.b, exp_avg.b, exp_avg_sq.b);
}

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
    return add_8(sums[0], sums[1], lanes.a.x) + add_8(sums[2], sums[3], lanes.b.x);
  }
  double total() const {
    const __m256d four = _mm256_add_pd(_mm256_add_pd(sums[0], sums[2]),   // l and l + 8,
                                       _mm256_add_pd(sums[1], sums[3]));  // then l and l + 4
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
  }
};

}  // namespace

void adam_update_avx2(const UpdateSpan& span, const AdamStep& step, RedoRecord* redo,
                      uint64_t first_index) {
  update_typed<Avx2Lanes>(span, step, redo, first_index);
}

size_t take_leaves_avx2(const GradientSpan& span, size_t at, size_t numel, double* leaves) {
  return take_typed<Avx2Lanes, Avx2Squares>(span, at, numel, leaves);
}

}  // namespace elixir::optim
