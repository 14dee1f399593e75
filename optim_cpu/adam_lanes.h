#pragma once

// The loop around adam_formula, written once for all instruction sets. Only adam_scalar.cpp,
// adam_avx2.cpp and adam_avx512.cpp include it and gradient_lanes.h. Each brings a class `Lanes` of
// kRedoVector floats with
//
//   Constants                                            AdamConstants<Lanes>, as a rule
//   keep()                                               in registers across a barrier (empty asm)
//   add, and the others that adam_formula calls          as for floats in adam_math.h
//   load(from), store(to)                                floats
//   load_bf16(from), load_half(from), store_half(to)     16-bit types
//   join_bf16(param, low), split_bf16(param, low)        the two halves of a master, formats.h
//
// Functions that store have a Via as first template argument. If addresses are multiples of 64,
// stores may go past the caches. Then end_stores() orders them before later stores of the thread.
//
// The class lies in an anonymous namespace, because no code compiled for one instruction set may be
// shared with another.

#include <cstring>

#include "optim_cpu/adam.h"
#include "optim_cpu/formats.h"

namespace elixir::optim {

// One for each instruction set, in its own file, compiled with its own flags.
void adam_update_scalar(const UpdateSpan&, const AdamStep&, RedoRecord*, uint64_t first_index);
void adam_update_avx2(const UpdateSpan&, const AdamStep&, RedoRecord*, uint64_t first_index);
void adam_update_avx512(const UpdateSpan&, const AdamStep&, RedoRecord*, uint64_t first_index);

enum class Via { kCaches, kMemory };

// The compiler moves no store across it. This is enough if one thread stores and each reader waits
// until that thread's process is dead.
ELIXIR_MATH void compiler_barrier() { asm volatile("" ::: "memory"); }

inline constexpr size_t kPrefetchNumel = 128;  // 64 to 256 are as good

// The arrays of a span with their element types.
struct Streams {
  std::byte* param;
  std::byte* master;
  float* exp_avg;
  float* exp_avg_sq;
};

// kRedoVector gradients of the type from element `at` on, as floats.
template <class Lanes, ComputeType kType>
ELIXIR_MATH Lanes load_grad(const void* grad, size_t at) {
  if constexpr (kType == ComputeType::kBf16) {
    return Lanes::load_bf16(static_cast<const uint16_t*>(grad) + at);
  }
  if constexpr (kType == ComputeType::kFp16) {
    return Lanes::load_half(static_cast<const uint16_t*>(grad) + at);
  }
  if constexpr (kType == ComputeType::kFp32) {
    return Lanes::load(static_cast<const float*>(grad) + at);
  }
}

// Parameters have kType. Gradients have kGrad: the same type, or FP32 for sums.
template <class Lanes, ComputeType kType, ComputeType kGrad>
struct AdamLanes {
  static constexpr size_t kParamBytes = kType == ComputeType::kFp32 ? 4 : 2;
  static constexpr size_t kGradBytes = kGrad == ComputeType::kFp32 ? 4 : 2;
  static constexpr size_t kMasterBytes =
      kType == ComputeType::kBf16 ? 2 : (kType == ComputeType::kFp16 ? 4 : 0);

  Lanes master, exp_avg, exp_avg_sq;

  ELIXIR_MATH static uint16_t* words(std::byte* bytes) {
    return reinterpret_cast<uint16_t*>(bytes);
  }

  // Hardware prefetchers stop at the end of each 4 KiB page, and shared memory rarely has larger
  // pages. Prefetching in every stream crosses this end. An address behind the span does no harm.
  ELIXIR_MATH static void prefetch(const Streams& in, const void* const* grads, int n_grads,
                                   size_t at) {
    for (int rank = 0; rank < n_grads; ++rank) {
      __builtin_prefetch(static_cast<const std::byte*>(grads[rank]) + at * kGradBytes);
    }
    __builtin_prefetch(in.param + at * kParamBytes);
    if constexpr (kMasterBytes != 0) __builtin_prefetch(in.master + at * kMasterBytes);
    __builtin_prefetch(in.exp_avg + at);
    __builtin_prefetch(in.exp_avg_sq + at);
  }

  ELIXIR_MATH static Lanes load_master(const Streams& in, size_t at) {
    if constexpr (kType == ComputeType::kBf16) {
      return Lanes::join_bf16(words(in.param) + at, words(in.master) + at);
    }
    if constexpr (kType == ComputeType::kFp16) {
      return Lanes::load(reinterpret_cast<const float*>(in.master) + at);
    }
    if constexpr (kType == ComputeType::kFp32) {
      return Lanes::load(reinterpret_cast<const float*>(in.param) + at);
    }
  }

  ELIXIR_MATH static AdamLanes update(const Streams& in, const void* const* grads, int n_grads,
                                      size_t at, const typename Lanes::Constants& step) {
    Lanes master = load_master(in, at), exp_avg = Lanes::load(in.exp_avg + at),
          exp_avg_sq = Lanes::load(in.exp_avg_sq + at);
    Lanes grad = load_grad<Lanes, kGrad>(grads[0], at);
    for (int rank = 1; rank < n_grads; ++rank) {
      grad = add(grad, load_grad<Lanes, kGrad>(grads[rank], at));
    }
    adam_formula(step, grad, master, exp_avg, exp_avg_sq);
    return {master, exp_avg, exp_avg_sq};
  }

  // Without it gcc 12 stores the results a third time, on the stack, and reads them back behind the
  // barrier. It costs a fifth of the rate on one thread.
  ELIXIR_MATH void keep() {
    master.keep();
    exp_avg.keep();
    exp_avg_sq.keep();
  }

  template <Via kVia = Via::kCaches>
  ELIXIR_MATH void store(const Streams& out, size_t at) const {
    if constexpr (kType == ComputeType::kBf16) {
      master.template split_bf16<kVia>(words(out.param) + at, words(out.master) + at);
    }
    if constexpr (kType == ComputeType::kFp16) {
      master.template store_half<kVia>(words(out.param) + at);
      master.template store<kVia>(reinterpret_cast<float*>(out.master) + at);
    }
    if constexpr (kType == ComputeType::kFp32) {
      master.template store<kVia>(reinterpret_cast<float*>(out.param) + at);
    }
    exp_avg.template store<kVia>(out.exp_avg + at);
    exp_avg_sq.template store<kVia>(out.exp_avg_sq + at);
  }
};

ELIXIR_MATH Streams streams_of(const UpdateSpan& span) {
  return {static_cast<std::byte*>(span.param), static_cast<std::byte*>(span.master),
          span.moments[0], span.moments[1]};
}
ELIXIR_MATH Streams results_of(const UpdateSpan& span) {
  if (span.results == nullptr) return streams_of(span);
  return {static_cast<std::byte*>(span.results->param),
          static_cast<std::byte*>(span.results->master), span.results->moments[0],
          span.results->moments[1]};
}
// Null arrays do not count: the type does without them.
ELIXIR_MATH bool may_go_past_caches(const Streams& out) {
  uintptr_t all = 0;
  for (const void* first :
       {static_cast<const void*>(out.param), static_cast<const void*>(out.master),
        static_cast<const void*>(out.exp_avg), static_cast<const void*>(out.exp_avg_sq)}) {
    all |= reinterpret_cast<uintptr_t>(first);
  }
  return all % 64 == 0;
}
ELIXIR_MATH Streams streams_of(RedoRecord::Half& half) {
  return {half.param, half.master, half.moments[0], half.moments[1]};
}

// Follows redo.h's protocol: call record() between the two stores of a vector. It is passed by
// value, because an object whose address is known would go through memory at every barrier.
class RedoWriter {
 public:
  ELIXIR_MATH RedoWriter(RedoRecord* record, uint64_t step, uint64_t first_index)
      : record_(record), step_(step), first_index_(first_index), sequence_(1) {
    if (record == nullptr) return;
    for (const RedoRecord::Half& half : record->half) {
      if (half.sequence >= sequence_) sequence_ = half.sequence + 1;
    }
  }

  ELIXIR_MATH bool records() const { return record_ != nullptr; }

  // The half that was not written last: the sequence is odd and even in turn.
  ELIXIR_MATH RedoRecord::Half& half() const { return record_->half[sequence_ & 1]; }

  // REQUIRES: half() holds the results of `numel` parameters from `at` on.
  ELIXIR_MATH void record(size_t at, size_t numel) {
    RedoRecord::Half& written = half();
    // From the third vector on, both halves have this step and a whole vector's length already.
    if (at < 2 * kRedoVector || numel != kRedoVector) {
      written.step = step_;
      written.numel = numel;
    }
    written.index = first_index_ + at;
    compiler_barrier();
    written.sequence = sequence_++;
    compiler_barrier();
  }

 private:
  RedoRecord* record_;
  uint64_t step_, first_index_, sequence_;
};

// Updates the last, shorter vector through a copy padded with zeros.
template <class Lanes, ComputeType kType, ComputeType kGrad>
void update_tail(const UpdateSpan& span, const AdamStep& step, size_t at, RedoWriter redo) {
  using Vector = AdamLanes<Lanes, kType, kGrad>;
  const typename Lanes::Constants constants(step);
  const Streams in = streams_of(span), out = results_of(span);
  constexpr size_t kParam = Vector::kParamBytes, kMaster = Vector::kMasterBytes;
  constexpr size_t kGradient = Vector::kGradBytes;
  const size_t numel = span.numel - at;
  alignas(64) std::byte grads[kMaxGrads][kRedoVector * kGradient];
  const void* grad_pointers[kMaxGrads];
  int rank = 0;
  do {  // there is at least one
    memset(grads[rank], 0, sizeof grads[rank]);
    memcpy(grads[rank], static_cast<const std::byte*>(span.grads[rank]) + at * kGradient,
           numel * kGradient);
    grad_pointers[rank] = grads[rank];
  } while (++rank < span.n_grads);
  RedoRecord::Half old = {}, local = {};
  memcpy(old.param, in.param + at * kParam, numel * kParam);
  if constexpr (kMaster != 0) memcpy(old.master, in.master + at * kMaster, numel * kMaster);
  memcpy(old.moments[0], in.exp_avg + at, numel * sizeof(float));
  memcpy(old.moments[1], in.exp_avg_sq + at, numel * sizeof(float));

  RedoRecord::Half& results = redo.records() ? redo.half() : local;
  Vector::update(streams_of(old), grad_pointers, span.n_grads, 0, constants)
      .store(streams_of(results), 0);
  if (redo.records()) redo.record(at, numel);
  memcpy(out.param + at * kParam, results.param, numel * kParam);
  if constexpr (kMaster != 0) memcpy(out.master + at * kMaster, results.master, numel * kMaster);
  memcpy(out.exp_avg + at, results.moments[0], numel * sizeof(float));
  memcpy(out.exp_avg_sq + at, results.moments[1], numel * sizeof(float));
}

// Keeps everything that the loop needs in locals whose addresses go nowhere. Otherwise the loop
// would read all of it again at each barrier of the redo record.
template <class Lanes, ComputeType kType, ComputeType kGrad>
void update_span(const UpdateSpan& span, const AdamStep& step, RedoRecord* record,
                 uint64_t first_index) {
  using Vector = AdamLanes<Lanes, kType, kGrad>;
  const typename Lanes::Constants constants(step);
  const Streams in = streams_of(span), out = results_of(span);
  const bool past_caches = span.results != nullptr && may_go_past_caches(out);
  const void* const* const grads = span.grads;
  const int n_grads = span.n_grads;
  const size_t whole = span.numel / kRedoVector * kRedoVector;
  RedoWriter redo(record, step.step, first_index);
  const auto update_whole = [&](const void* const* of, int n) __attribute__((always_inline)) {
    if (redo.records()) {
      for (size_t at = 0; at < whole; at += kRedoVector) {
        Vector::prefetch(in, of, n, at + kPrefetchNumel);
        Vector results = Vector::update(in, of, n, at, constants);
        results.keep();
        results.store(streams_of(redo.half()), 0);
        redo.record(at, kRedoVector);
        results.store(in, at);
      }
    } else if (past_caches) {
      for (size_t at = 0; at < whole; at += kRedoVector) {
        Vector::prefetch(in, of, n, at + kPrefetchNumel);
        Vector::update(in, of, n, at, constants).template store<Via::kMemory>(out, at);
      }
      Lanes::end_stores();
    } else {
      for (size_t at = 0; at < whole; at += kRedoVector) {
        Vector::prefetch(in, of, n, at + kPrefetchNumel);
        Vector::update(in, of, n, at, constants).store(out, at);
      }
    }
  };
  // A processor looks ahead about 250 instructions, hardly two vectors. Without the loops over
  // gradients the rate is a tenth higher.
  if (n_grads == 1 && whole > 0) {  // without elements there may be no array
    const void* const only = grads[0];
    update_whole(&only, 1);
  } else {
    update_whole(grads, n_grads);
  }
  if (whole < span.numel) update_tail<Lanes, kType, kGrad>(span, step, whole, redo);
}

template <class Lanes, ComputeType kType>
void update_with(const UpdateSpan& span, const AdamStep& step, RedoRecord* redo,
                 uint64_t first_index) {
  if (span.grad_sum == nullptr) {
    return update_span<Lanes, kType, kType>(span, step, redo, first_index);
  }
  const void* const sum = span.grad_sum;
  UpdateSpan from_sum = span;
  from_sum.n_grads = 1;
  from_sum.grads = &sum;
  update_span<Lanes, kType, ComputeType::kFp32>(from_sum, step, redo, first_index);
}

template <class Lanes>
void update_typed(const UpdateSpan& span, const AdamStep& step, RedoRecord* redo,
                  uint64_t first_index) {
  switch (span.type) {
    case ComputeType::kBf16:
      return update_with<Lanes, ComputeType::kBf16>(span, step, redo, first_index);
    case ComputeType::kFp16:
      return update_with<Lanes, ComputeType::kFp16>(span, step, redo, first_index);
    case ComputeType::kFp32:
      return update_with<Lanes, ComputeType::kFp32>(span, step, redo, first_index);
  }
}

}  // namespace elixir::optim
