#pragma once

#include <atomic>
#include <optional>
#include <span>
#include <vector>

#include "checkpoint/file_plan.h"
#include "checkpoint/manifest.h"
#include "daemon/snapshot.h"
#include "daemon/state_slots.h"
#include "shm/parameter_table.h"
#include "shm/shape.h"

namespace elixir::daemon {

enum class LeftOutKind { kFrozen, kAll };

// Makes a checkpoint's entry about the parameters that it leaves out. Reads all of them in the
// memory of `ranks`; those in chunks on the GPU count, but their values are not in the hash. Empty
// if these are not all ranks of the job, or when cancelled. For a background thread. kAll: while no
// update runs.
std::optional<checkpoints::LeftOut> left_out_of(LeftOutKind kind, const shm::Shape& shape,
                                                std::span<const shm::ParameterPlace> places,
                                                const StateSlots& slots,
                                                std::span<const Snapshot::Rank> ranks,
                                                const std::atomic<bool>& cancelled);

// The trained parameters of a save of states alone. They change with every step, so those of the
// snapshot are looked at chunk by chunk, while no update changes them.
class TrainedValues {
 public:
  // `parameters` outlive this object.
  TrainedValues(const shm::Shape& shape, std::span<const checkpoints::SavedParameter> parameters);

  struct Sums {
    uint64_t hash = 0, not_finite = 0;
  };
  // REQUIRES: the writer has the chunk in hand. Its part of the sums, which counts once.
  Sums look_at(const Snapshot::Item& item) const;
  // The entry of the manifest. `hash`: the sum over all chunks. `frozen`: of those.
  checkpoints::LeftOut with(const checkpoints::LeftOut& frozen, uint64_t hash) const;

 private:
  struct Part {
    uint32_t parameter;
    shm::ParameterPart part;
  };

  const shm::Shape& shape_;
  const std::span<const checkpoints::SavedParameter> parameters_;
  std::vector<std::vector<Part>> parts_;  // by chunk
};

}  // namespace elixir::daemon
