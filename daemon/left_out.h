#pragma once

#include <atomic>
#include <optional>
#include <span>

#include "checkpoint/manifest.h"
#include "daemon/snapshot.h"
#include "daemon/state_slots.h"
#include "shm/parameter_table.h"
#include "shm/shape.h"

namespace elixir::daemon {

// Makes a checkpoint's entry about the frozen parameters that it leaves out. Reads all of them in
// the memory of `ranks`. Empty if these are not all ranks of the job, or when cancelled. For a
// background thread.
std::optional<checkpoints::LeftOut> left_out_of(const shm::Shape& shape,
                                                std::span<const shm::ParameterPlace> places,
                                                const StateSlots& slots,
                                                std::span<const Snapshot::Rank> ranks,
                                                const std::atomic<bool>& cancelled);

}  // namespace elixir::daemon
