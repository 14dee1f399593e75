#pragma once

#include <cstdint>

#include "base/status.h"
#include "planner/machine.h"
#include "planner/profile.h"
#include "planner/search/make_plan.h"
#include "planner/step_compute.h"

namespace elixir::planner {

// The checked input of a search.
struct SearchInput {
  ModelProfile profile;  // in the order of first use, with the request's tokens
  Machine machine;       // as the policy's runtime uses it
  ComputeMeasure measure = ComputeMeasure::kOperators;
  bool assumed_fp32 = false;  // as in Plan
  RegionPlan region_plan = {};
  uint64_t allowed_bytes = 0;
  Status unfit = {};  // not OK: no plan fits
};

inline bool is_zero(Policy policy) {
  return policy == Policy::kZero2Offload || policy == Policy::kZero3Offload;
}

// Checks all three and puts them in order. Returns make_plan()'s errors, except that
// kResourceExhausted is in SearchInput::unfit.
Result<SearchInput> search_input(const ModelProfile& asked, const Machine& as_measured,
                                 const PlanRequest& request);

// The same input with regions that keep or send something. REQUIRES: input.region_plan keeps
// nothing. It may send inputs: then `input.profile` is without that.
SearchInput with_regions(const SearchInput& input, const PlanRequest& request,
                         const RegionPlan& plan);

}  // namespace elixir::planner
