#pragma once

// Adam and AdamW over spans of host memory: arithmetic only. No threads, no shared memory, no
// allocation. Any thread may call any function, on memory that nobody else uses during the call.
// Every instruction set gives the bits of the scalar reference, NaNs (kNanBits, always) and
// denormals included. They do not depend on the rounding and flush-to-zero modes that the calling
// thread has set.
// The formula is in adam_math.h, the 16-bit types in formats.h.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/compute_type.h"
#include "base/enum_names.h"
#include "base/update_rule.h"
#include "optim_cpu/adam_math.h"
#include "optim_cpu/redo.h"

namespace elixir::optim {

// Names, defaults and meaning as in torch::optim::AdamW and torch::optim::Adam.
struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  UpdateRule rule = UpdateRule::kAdamW;  // p *= 1 - lr*wd first; kAdam: g += wd*p
};

// `step` counts from 1. Powers of beta are taken in double.
AdamStep make_adam_step(const AdamOptions& options, uint64_t step, double grad_scale);

// Up to this many gradients are summed inside the update (one per rank of the node).
inline constexpr int kMaxGrads = 64;

// `numel` consecutive elements, the same index in every array.
struct UpdateSpan {
  ComputeType type = ComputeType::kFp32;
  int n_grads = 1;                     // gradients to sum, in FP32, in this order
  const void* const* grads = nullptr;  // n_grads arrays of `type`
  const float* grad_sum = nullptr;     // if given, the gradients, instead of grads
  void* param = nullptr;               // of `type`; with FP32 it is the master
  void* master = nullptr;            // BF16: uint16_t low halves; FP16: float masters; FP32: unused
  float* moments[kMaxMoments] = {};  // Adam: exp_avg, exp_avg_sq
  size_t numel = 0;
  // If given, the results go there, and the arrays above stay as they are. The stores go past the
  // caches, because shared memory of many gigabytes would only sweep the caches.
  const StatePlace* results = nullptr;
};

enum class Isa { kScalar, kAvx2, kAvx512 };
inline constexpr Isa kIsas[] = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512};

// The best that this processor and kernel support (both vector sets need AVX2, FMA and F16C). The
// environment variable ELIXIR_ISA=scalar|avx2|avx512, read once, asks for less; it cannot ask for
// more.
Isa best_isa();
bool isa_supported(Isa isa);  // by this processor and kernel

// The features that the files of optim_cpu/ are compiled for. A virtual machine may mask any of
// them.
struct CpuFeatures {
  bool avx2 = false;
  bool fma = false;
  bool f16c = false;
  bool avx512f = false;
};
constexpr bool isa_supported(Isa isa, const CpuFeatures& features) {
  const bool avx2 = features.avx2 && features.fma && features.f16c;
  return isa == Isa::kScalar || (avx2 && (isa == Isa::kAvx2 || features.avx512f));
}
CpuFeatures cpu_features();
inline constexpr EnumName<Isa> kIsaNames[] = {
    {"scalar", Isa::kScalar}, {"avx2", Isa::kAvx2}, {"avx512", Isa::kAvx512}};
constexpr const char* isa_name(Isa isa) { return name_in(kIsaNames, isa); }

// Updates the span in place, or into span.results. The latter takes no redo record, because nobody
// reads results that are half written. With `redo`, each vector's results are recorded before they
// are stored (redo.h). `first_index` is the span's position in the redo record's numbering.
// REQUIRES: isa_supported(isa); 1 <= n_grads <= kMaxGrads; redo or span.results is null; arrays
// aligned to their element and not overlapping. Nothing checks the arrays, because spans are parts
// of arrays whose offsets Shape says.
void adam_update(Isa isa, const UpdateSpan& span, const AdamStep& step, RedoRecord* redo = nullptr,
                 uint64_t first_index = 0);

}  // namespace elixir::optim
