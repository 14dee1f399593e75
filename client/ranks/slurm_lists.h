#pragma once

// Two of Slurm's ways to write lists in the environment. No torch.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace elixir {

// The first host of a node list: "gpu[07-09,12],login" gives "gpu07". Slurm numbers a step's nodes
// in this order. Empty if the text is no such list.
std::string first_slurm_host(std::string_view nodes);

// The number of tasks on the node with this number. With "2(x3),1", nodes 0 to 3 run 2, 2, 2 and 1.
std::optional<uint32_t> slurm_tasks_on_node(std::string_view tasks_per_node, uint32_t node);

}  // namespace elixir
