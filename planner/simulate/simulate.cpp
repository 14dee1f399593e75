#include "planner/simulate/simulate.h"

#include <cmath>

#include "planner/simulate/step_program.h"
#include "planner/simulate/step_simulation.h"

namespace elixir::planner {
namespace {

constexpr double kEqual = 1e-9;  // of a step's length
// The first step begins with everything updated, so that only its successors are alike.
constexpr int kFewestSteps = 3;

}  // namespace

Result<StepTimes> simulate_step(const StepModel& model, std::vector<StepSpan>* spans) {
  const Result<StepProgram> program = make_step_program(model);
  if (!program.ok()) return program.status();
  StepSimulation simulation(model, *program, spans != nullptr);
  double before_s = -1;
  for (int step = 0; step < kMaxSimulatedSteps; ++step) {
    ELIXIR_RETURN_IF_ERROR(simulation.run_step());
    const double step_s = simulation.last_step_s();
    const bool alike = std::abs(step_s - before_s) <= kEqual * step_s;
    before_s = step_s;
    if (alike && step + 1 >= kFewestSteps) break;
  }
  if (spans != nullptr) *spans = simulation.last_spans();
  return simulation.last_step();
}

}  // namespace elixir::planner
