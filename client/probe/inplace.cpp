#include "client/probe/inplace.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace elixir::probe {
namespace {

void baseline(uint64_t* words, size_t numel, uint64_t mask) {
  for (size_t i = 0; i < numel; ++i) words[i] ^= mask;
}

#if defined(__x86_64__)
constexpr size_t kLineWords = 8;

// kStreams places of the span at once; kAhead bytes of software prefetch, 0: none.
template <int kStreams, int kAhead>
__attribute__((target("avx512f"))) void avx512(uint64_t* words, size_t numel, uint64_t mask) {
  const __m512i flip = _mm512_set1_epi64(static_cast<int64_t>(mask));
  const size_t part = numel / kStreams;
  for (size_t i = 0; i < part; i += kLineWords) {
    for (int stream = 0; stream < kStreams; ++stream) {
      uint64_t* const line = words + static_cast<size_t>(stream) * part + i;
      if (kAhead != 0) _mm_prefetch(reinterpret_cast<const char*>(line) + kAhead, _MM_HINT_T0);
      _mm512_storeu_si512(line, _mm512_xor_si512(_mm512_loadu_si512(line), flip));
    }
  }
}

template <int kStreams, int kAhead>
__attribute__((target("avx2"))) void avx2(uint64_t* words, size_t numel, uint64_t mask) {
  const __m256i flip = _mm256_set1_epi64x(static_cast<int64_t>(mask));
  const size_t part = numel / kStreams;
  for (size_t i = 0; i < part; i += kLineWords) {
    for (int stream = 0; stream < kStreams; ++stream) {
      uint64_t* const line = words + static_cast<size_t>(stream) * part + i;
      if (kAhead != 0) _mm_prefetch(reinterpret_cast<const char*>(line) + kAhead, _MM_HINT_T0);
      for (auto* half = reinterpret_cast<__m256i*>(line);
           half < reinterpret_cast<__m256i*>(line + kLineWords); ++half) {
        _mm256_storeu_si256(half, _mm256_xor_si256(_mm256_loadu_si256(half), flip));
      }
    }
  }
}
#endif

}  // namespace

std::vector<InplaceLoop> inplace_loops() {
  std::vector<InplaceLoop> loops = {{"baseline", baseline}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) {
    loops.push_back({"avx2", avx2<1, 0>});
    loops.push_back({"avx2, 4 streams, prefetch", avx2<4, 1024>});
  }
  if (__builtin_cpu_supports("avx512f")) {
    loops.push_back({"avx512", avx512<1, 0>});
    loops.push_back({"avx512, prefetch", avx512<1, 2048>});
    loops.push_back({"avx512, 4 streams", avx512<4, 0>});
    loops.push_back({"avx512, 4 streams, prefetch", avx512<4, 1024>});
  }
#endif
  return loops;
}

}  // namespace elixir::probe
