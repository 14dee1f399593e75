#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "client/exchange/collective_group.h"
#include "shm/layout.h"

namespace elixir {

// What a rank has said of a step's gradients (Session::grad_groups): by parameter, shm::kNoGradient
// or the group that it updates it with.

// 1: a parameter has no gradient here. Else 0.
uint32_t lacks_gradients(std::span<const shm::GradGroup> groups);

// A gradient on one rank is everyone's: each updates its shards of that parameter. So `groups` is
// afterwards what any rank has said. All ranks. Throws kProtocol where two have said different
// groups, with the parameter's name.
void share_grad_groups(std::span<shm::GradGroup> groups, const std::vector<std::string>& names,
                       CollectiveGroup& ranks);

}  // namespace elixir
