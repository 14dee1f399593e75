#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "client/plan/roofline.h"
#include "planner/plan/plan.h"

namespace elixir {

// Compares measured steps with the predicted one.
class PlanCheck {
 public:
  static constexpr uint32_t kFirstStep = 4;  // earlier steps warm up
  static constexpr uint32_t kLastStep = 10;

  explicit PlanCheck(planner::Plan plan) : plan_(std::move(plan)) {}

  // Call it for each step, in order. gpu_bytes: the peak of the device's memory so far (0: not
  // known). The call for kLastStep returns the comparison, all others nothing.
  std::optional<std::string> add(uint32_t step, const Roofline& measured, uint64_t gpu_bytes = 0);

 private:
  const planner::Plan plan_;
  Roofline sum_{};
  uint32_t steps_ = 0;
};

}  // namespace elixir
