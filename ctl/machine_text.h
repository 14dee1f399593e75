#pragma once

#include <string>

#include "planner/machine_cache.h"

namespace elixir::ctl {

// The measured figures, one per line, followed by the notes.
std::string machine_text(const planner::ProbedMachine& probed);

// The figures in one line, without the notes.
std::string machine_line(const planner::ProbedMachine& probed);

}  // namespace elixir::ctl
