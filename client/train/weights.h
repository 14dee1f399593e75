#pragma once

#include <cstdint>
#include <vector>

#include "client/exchange/exchange.h"
#include "client/plan/run_plan.h"
#include "client/train/module_parameters.h"

namespace elixir {

// Gives all ranks rank 0's values, as DistributedDataParallel does. `parameters` are in the order
// of the plan's places. Parameters of a module built under MetaInit get their values now, a few
// chunks at a time, so that a model larger than the memory can start. All ranks call it, with
// `gives` on rank 0 alone; it returns when every rank has the values. `threads` threads draw and
// load; their number does not change the values.
void load_weights(Exchange& exchange, const RunPlan& plan,
                  const std::vector<ModuleParameter>& parameters, bool gives, uint32_t threads);

// Gives all ranks rank 0's values of the tensors in no chunk, too. All ranks call it. Ranks whose
// names, types or sizes differ throw kInvalidArgument.
void share_the_rest(Exchange& exchange, const RunPlan& plan, std::vector<MovedTensor>& rest);

// Gives all ranks rank 0's values of these buffers, on any device. All ranks call it, with buffers
// of the same sizes.
void share_buffers(Exchange& exchange, const std::vector<NamedTensor>& buffers);

// The xxh64 (seed 0) over all FP32 masters, parameters in ascending order of their names
// (bytewise), each in the order of its elements, without padding. All ranks call it, and get the
// same value. REQUIRES: the last step is finished on every rank. Engine ensures this; nothing here
// checks it.
uint64_t masters_xxh64(Exchange& exchange, const RunPlan& plan);

}  // namespace elixir
