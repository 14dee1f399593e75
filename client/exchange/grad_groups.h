#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "client/exchange/collective_group.h"
#include "shm/layout.h"

namespace elixir {

// Session::grad_groups has a rank's gradients of a step. The entry of a parameter is
// shm::kNoGradient, or the group with which the rank updates it.

// Returns 1 if a parameter has no gradient here, else 0.
uint32_t lacks_gradients(std::span<const shm::GradGroup> groups);

// A gradient on one rank counts for all ranks, because each updates its shards of that parameter.
// So this sets each entry without a gradient to the group of a rank that has one. All ranks call
// it. Throws kProtocol with the parameter's name if two ranks have different groups.
void share_grad_groups(std::span<shm::GradGroup> groups, const std::vector<std::string>& names,
                       CollectiveGroup& ranks);

}  // namespace elixir
