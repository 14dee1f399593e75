#pragma once

// Two of Slurm's ways to write lists in the environment. No torch.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace elixir {

// The first host of a node list: "gpu[07-09,12],login" gives "gpu07". Slurm numbers a step's nodes
// in this order. Empty for what is no such list.
std::string first_slurm_host(std::string_view nodes);

// Of "2(x3),1": how many tasks the node with this number runs (here 2, 2, 2, 1).
std::optional<uint32_t> slurm_tasks_on_node(std::string_view tasks_per_node, uint32_t node);

}  // namespace elixir
