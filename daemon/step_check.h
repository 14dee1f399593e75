#pragma once

#include <span>

#include "base/status.h"
#include "optim_cpu/adam.h"
#include "optim_cpu/verdict.h"
#include "shm/layout.h"

namespace elixir::daemon {

// A violation and the rank that made it.
struct StepViolation {
  uint32_t rank = 0;
  std::string text;  // empty: none
};

// Checks copies of all ranks' records of `step`, in rank order: the number is right, the update
// rule is known and has the job's `n_moments`, every hyperparameter is finite and in range, and all
// ranks have the same ones, bit for bit.
StepViolation check_step_records(std::span<const shm::StepRecord> records, uint32_t step,
                                 uint32_t n_moments);

// Of a job with immediate updates: no clipping and no check, and, where the step was opened with
// `open` (else null), the hyperparameters of then.
bool same_hyperparameters(const shm::StepRecord& a, const shm::StepRecord& b);
StepViolation check_immediate(std::span<const shm::StepRecord> records,
                              const shm::StepRecord* open);

// StepRecord::norm where trainers have summed it up: the same on every rank.
StepViolation check_equal_norms(std::span<const shm::StepRecord> records);

// What the kernel needs of a record that passed; `group` < n_groups.
optim::AdamOptions adam_options(const shm::StepRecord& record, uint32_t group);
optim::VerdictTerms verdict_terms(const shm::StepRecord& record);

// The mean of the ranks' metrics, summed in rank order.
double mean_metric(std::span<const shm::StepRecord> records);

}  // namespace elixir::daemon
