#pragma once

#include <cstdint>
#include <span>

#include "daemon/session_memory.h"
#include "shm/parameter_table.h"

namespace elixir::daemon {

// xxh64, seed 0, over the FP32 masters: parameters in the order given (ascending names), each in
// the order of its elements, across the shards of all ranks. `ranks` in rank order.
uint64_t masters_xxh64(const shm::Shape& shape, std::span<const shm::ParameterPlace> places,
                       std::span<const SessionMemory* const> ranks);

}  // namespace elixir::daemon
