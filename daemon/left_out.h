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

// What a checkpoint without frozen parameters says of them, from the memory of `ranks`, of which
// there must be all of the job: else it is none. Reads all of it; empty when cancelled. A
// background thread.
std::optional<checkpoints::LeftOut> left_out_of(const shm::Shape& shape,
                                                std::span<const shm::ParameterPlace> places,
                                                const StateSlots& slots,
                                                std::span<const Snapshot::Rank> ranks,
                                                const std::atomic<bool>& cancelled);

}  // namespace elixir::daemon
