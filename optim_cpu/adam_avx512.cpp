// Compiled with -mavx512f; run only where the processor has it.

#include <immintrin.h>

#include "optim_cpu/gradient_lanes.h"

namespace elixir::optim {
namespace {

struct Avx512Lanes {
  using Constants = AdamConstants<Avx512Lanes>;

  __m512 x;

  Avx512Lanes(__m512 lanes) : x(lanes) {}  // NOLINT: a name for the same thing
  explicit Avx512Lanes(float value) : x(_mm512_set1_ps(value)) {}

  void keep() { asm("" : "+v"(x)); }

  static __m512i load_words(const uint16_t* from) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  template <Via kVia>
  static void store_bytes(uint16_t* to, __m256i words) {
    auto* const address = reinterpret_cast<__m256i*>(to);
    kVia == Via::kMemory ? _mm256_stream_si256(address, words)
                         : _mm256_storeu_si256(address, words);
  }
  static void end_stores() { _mm_sfence(); }

  static Avx512Lanes load(const float* from) { return _mm512_loadu_ps(from); }
  static Avx512Lanes load_bf16(const uint16_t* from) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(load_words(from), 16));
  }
  static Avx512Lanes load_half(const uint16_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static Avx512Lanes join_bf16(const uint16_t* param, const uint16_t* low) {
    const __m512i low_words = load_words(low);
    const __mmask16 carried = _mm512_cmpgt_epu32_mask(low_words, _mm512_set1_epi32(0x8000));
    const __m512i param_words = load_words(param);
    const __m512i high =
        _mm512_mask_sub_epi32(param_words, carried, param_words, _mm512_set1_epi32(1));
    return _mm512_castsi512_ps(_mm512_or_epi32(_mm512_slli_epi32(high, 16), low_words));
  }

  template <Via kVia = Via::kCaches>
  void store(float* to) const {
    kVia == Via::kMemory ? _mm512_stream_ps(to, x) : _mm512_storeu_ps(to, x);
  }
  template <Via kVia = Via::kCaches>
  void store_half(uint16_t* to) const {
    store_bytes<kVia>(to, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  template <Via kVia = Via::kCaches>
  void split_bf16(uint16_t* param, uint16_t* low) const {
    __m512i bits = _mm512_castps_si512(x);  // adam_formula has left one NaN only
    const __mmask16 tie = _mm512_cmpeq_epi32_mask(
        _mm512_and_epi32(bits, _mm512_set1_epi32(0x1ffff)), _mm512_set1_epi32(0x18000));
    bits = _mm512_mask_or_epi32(bits, tie, bits, _mm512_set1_epi32(1));
    const __m512i high = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), 16);
    store_bytes<kVia>(param, _mm512_cvtepi32_epi16(high));
    store_bytes<kVia>(low, _mm512_cvtepi32_epi16(bits));
  }

  friend Avx512Lanes add(Avx512Lanes a, Avx512Lanes b) { return _mm512_add_ps(a.x, b.x); }
  friend Avx512Lanes subtract(Avx512Lanes a, Avx512Lanes b) { return _mm512_sub_ps(a.x, b.x); }
  friend Avx512Lanes multiply(Avx512Lanes a, Avx512Lanes b) { return _mm512_mul_ps(a.x, b.x); }
  friend Avx512Lanes divide(Avx512Lanes a, Avx512Lanes b) { return _mm512_div_ps(a.x, b.x); }
  friend Avx512Lanes square_root(Avx512Lanes a) { return _mm512_sqrt_ps(a.x); }
  friend Avx512Lanes fused(Avx512Lanes a, Avx512Lanes b, Avx512Lanes c) {
    return _mm512_fmadd_ps(a.x, b.x, c.x);
  }
  friend Avx512Lanes one_nan(Avx512Lanes a) {
    const __mmask16 nan = _mm512_cmp_ps_mask(a.x, a.x, _CMP_UNORD_Q);
    return _mm512_mask_mov_ps(a.x, nan, _mm512_castsi512_ps(_mm512_set1_epi32(kNanBits)));
  }
};

struct Avx512Squares {
  __m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();

  unsigned add(Avx512Lanes lanes) {
    const __m512i infinity = _mm512_set1_epi32(0x7f800000);
    const __m512i exponent = _mm512_and_epi32(_mm512_castps_si512(lanes.x), infinity);
    const __mmask16 finite = _mm512_cmplt_epi32_mask(exponent, infinity);
    const __m512d all = _mm512_castps_pd(_mm512_maskz_mov_ps(finite, lanes.x));
    const __m512d first = _mm512_cvtps_pd(_mm256_castpd_ps(_mm512_castpd512_pd256(all)));
    const __m512d second = _mm512_cvtps_pd(_mm256_castpd_ps(_mm512_extractf64x4_pd(all, 1)));
    low = _mm512_fmadd_pd(first, first, low);
    high = _mm512_fmadd_pd(second, second, high);
    return 16 - static_cast<unsigned>(__builtin_popcount(finite));
  }
  double total() const {
    const __m512d eight = _mm512_add_pd(low, high);
    const __m256d four =
        _mm256_add_pd(_mm512_castpd512_pd256(eight), _mm512_extractf64x4_pd(eight, 1));
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
  }
};

}  // namespace

void adam_update_avx512(const UpdateSpan& span, const AdamStep& step, RedoRecord* redo,
                        uint64_t first_index) {
  update_typed<Avx512Lanes>(span, step, redo, first_index);
}

size_t take_leaves_avx512(const GradientSpan& span, size_t at, size_t numel, double* leaves) {
  return take_typed<Avx512Lanes, Avx512Squares>(span, at, numel, leaves);
}

}  // namespace elixir::optim
