#pragma once

#include <span>

#include "base/status.h"
#include "optim_cpu/adam.h"
#include "shm/layout.h"

namespace elixir::daemon {

// A violation and the rank that made it.
struct StepViolation {
  uint32_t rank = 0;
  std::string text;  // empty: none
};

// Checks copies of all ranks' records of `step`, in rank order: the number is right, every
// hyperparameter is finite and in range, and all ranks have the same ones, bit for bit.
StepViolation check_step_records(std::span<const shm::StepRecord> records, uint32_t step);

// What the kernel needs of a record that passed.
optim::AdamOptions adam_options(const shm::StepRecord& record);

// The mean of the ranks' metrics, summed in rank order.
double mean_metric(std::span<const shm::StepRecord> records);

}  // namespace elixir::daemon
