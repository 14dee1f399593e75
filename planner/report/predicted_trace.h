#pragma once

#include <span>
#include <string>

#include "planner/simulate/simulate.h"

namespace elixir::planner {

// The simulated step in Chrome's trace format (chrome://tracing, Perfetto). Its rows are compute,
// h2d, d2h, g2g, update (elixird) and gpu update. Spans are named by chunk or operator.
std::string predicted_trace(std::span<const StepSpan> spans);

}  // namespace elixir::planner
