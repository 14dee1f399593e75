#pragma once

#include <string>

#include "planner/machine_cache.h"

namespace elixir::ctl {

// What was measured, a figure a line, and the notes.
std::string machine_text(const planner::ProbedMachine& probed);

// The same in one line, without the notes.
std::string machine_line(const planner::ProbedMachine& probed);

}  // namespace elixir::ctl
