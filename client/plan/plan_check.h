#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "client/plan/roofline.h"
#include "planner/plan/plan.h"

namespace elixir {

// Holds the measured steps against the predicted one.
class PlanCheck {
 public:
  static constexpr uint32_t kFirstStep = 4;  // those before warm up
  static constexpr uint32_t kLastStep = 10;

  explicit PlanCheck(planner::Plan plan) : plan_(std::move(plan)) {}

  // Of each step, in order; with what the device's memory was at most until then (0: not known).
  // The comparison, once: with kLastStep's.
  std::optional<std::string> add(uint32_t step, const Roofline& measured, uint64_t gpu_bytes = 0);

 private:
  const planner::Plan plan_;
  Roofline sum_{};
  uint32_t steps_ = 0;
};

}  // namespace elixir
