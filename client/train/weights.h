#pragma once

#include <cstdint>
#include <vector>

#include "client/exchange/exchange.h"
#include "client/plan/run_plan.h"
#include "client/train/module_parameters.h"

namespace elixir {

// Rank 0's values become everyone's, as DistributedDataParallel broadcasts them. `parameters` in
// the order of the plan's places; those of a module that was built under MetaInit get their values
// now, a few chunks at a time, so that a model larger than the memory can start. All ranks, `gives`
// on rank 0 alone; returns when every rank has them. `threads` draw and load; what they draw does
// not depend on how many there are.
void load_weights(Exchange& exchange, const RunPlan& plan,
                  const std::vector<ModuleParameter>& parameters, bool gives, uint32_t threads);

// Rank 0's values of what is in no chunk become everyone's, too. All ranks; kInvalidArgument, on
// those that differ, where it is not of the same names, types and sizes on all.
void share_the_rest(Exchange& exchange, const RunPlan& plan, std::vector<MovedTensor>& rest);

// Rank 0's values of these buffers become everyone's, wherever they lie. All ranks, with buffers of
// the same sizes.
void share_buffers(Exchange& exchange, const std::vector<NamedTensor>& buffers);

// The xxh64 (seed 0) over all FP32 masters, parameters in ascending order of their names
// (bytewise), each in the order of its elements, without padding. All ranks; the same on all.
// REQUIRES: the last step is finished, on every rank; Engine sees to it, nothing here checks it.
uint64_t masters_xxh64(Exchange& exchange, const RunPlan& plan);

}  // namespace elixir
