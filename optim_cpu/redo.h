#pragma once

// Adam in place is not idempotent. An updater that is killed between two of its stores leaves a
// vector of which some parameters are of this step and some of the last. The redo record, in memory
// that outlives the updater, makes that vector whole again.
//
// For each vector of up to 16 parameters adam_update stores, in this order,
//
//   1. the results, and which parameters they are, into the half that was not written last;
//   2. that half's `sequence`, one more than the other's;
//   3. the results in place.
//
// A killed process loses no store that it retired, and it retires stores in the order of the
// program. So compiler barriers between the three are enough. (Losing the machine loses the memory
// with it.) At any instant the half with the greater sequence is complete, and all vectors before
// it are in place. Only its own vector may be torn or missing. So recovery takes three steps:
//
//   last_redo(record), apply_redo into the places it names, resume at index + numel.
//
// Applying twice does no harm, so recovery may be killed as well. The updater that resumes writes
// the half that recovery did not read. If it is killed in its first store, it finds the same
// record.
// Note: docs/design/elixir.md, "redo record".
//
// One record has one updater at a time. Call neither function while one runs.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/compute_type.h"
#include "base/status.h"
#include "base/update_rule.h"

namespace elixir::optim {

inline constexpr size_t kRedoVector = 16;  // parameters per half

// One worker's redo record. All zeros is "empty". Part of the shared-memory layout.
struct alignas(64) RedoRecord {
  struct alignas(64) Half {
    std::byte param[kRedoVector * 4];   // elements of the compute type
    std::byte master[kRedoVector * 4];  // BF16: uint16_t low halves; FP16: floats; FP32: unused
    float moments[kMaxMoments][kRedoVector];
    uint64_t step;      // AdamStep::step
    uint64_t index;     // the first parameter, in the numbering of adam_update's first_index
    uint64_t numel;     // 1..16
    uint64_t sequence;  // counts the vectors of this record from 1; 0: never written
    uint64_t reserved[4];
  };
  Half half[2];
};
static_assert(std::is_trivially_copyable_v<RedoRecord> && std::is_standard_layout_v<RedoRecord>);
static_assert(sizeof(RedoRecord::Half) == 320 && sizeof(RedoRecord) == 640);
static_assert(offsetof(RedoRecord::Half, step) == 256);
static_assert(offsetof(RedoRecord::Half, sequence) == 280);

// The parameters that were recorded last. numel == 0: nothing was ever recorded.
struct RedoMark {
  uint64_t step = 0;
  uint64_t index = 0;
  uint64_t numel = 0;
};

// Reads `record`, whose updater is dead. kProtocol: no updater can have written this.
Result<RedoMark> last_redo(const RedoRecord& record);

// The place of the states of consecutive parameters: pointers to the first one's.
struct StatePlace {
  void* param = nullptr;   // of the compute type; with FP32 it is the master
  void* master = nullptr;  // BF16: uint16_t low halves; FP16: floats; FP32: unused
  float* moments[kMaxMoments] = {};
};

// Stores the results that were recorded last. `target` is the place of parameter RedoMark::index
// and those behind it. REQUIRES: last_redo gave a mark with numel > 0.
void apply_redo(ComputeType type, const RedoRecord& record, const StatePlace& target);

}  // namespace elixir::optim
