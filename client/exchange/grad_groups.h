#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "client/exchange/collective_group.h"
#include "shm/layout.h"

namespace elixir {

// A rank's gradients of a step (Session::grad_groups), by parameter: shm::kNoGradient, or the group
// with which the rank updates it.

// Returns 1 if a parameter has no gradient here, else 0.
uint32_t lacks_gradients(std::span<const shm::GradGroup> groups);

// A gradient on one rank counts for all ranks, because each updates its shards of that parameter.
// So afterwards `groups` holds what any rank has said. All ranks. Throws kProtocol with the
// parameter's name if two ranks have said different groups.
void share_grad_groups(std::span<shm::GradGroup> groups, const std::vector<std::string>& names,
                       CollectiveGroup& ranks);

}  // namespace elixir
