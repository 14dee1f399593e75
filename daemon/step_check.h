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

// Checks copies of all ranks' records of `step`, in rank order. The number must be right. The
// update rule must be known and have the job's `n_moments`. Every hyperparameter must be finite, in
// range, and the same on all ranks, bit for bit.
StepViolation check_step_records(std::span<const shm::StepRecord> records, uint32_t step,
                                 uint32_t n_moments);

bool same_hyperparameters(const shm::StepRecord& a, const shm::StepRecord& b);

// Checks for a job with immediate updates: no clipping, no check of finite gradients, and the
// hyperparameters of `open`, with which the step was opened (null: it was not).
StepViolation check_immediate(std::span<const shm::StepRecord> records,
                              const shm::StepRecord* open);

// Checks that StepRecord::norm, which trainers have summed up, is the same on every rank.
StepViolation check_equal_norms(std::span<const shm::StepRecord> records);

// The kernel's terms, from a record that passed these checks; `group` < n_groups.
optim::AdamOptions adam_options(const shm::StepRecord& record, uint32_t group);
optim::VerdictTerms verdict_terms(const shm::StepRecord& record);

// The mean of the ranks' metrics, summed in rank order.
double mean_metric(std::span<const shm::StepRecord> records);

}  // namespace elixir::daemon
