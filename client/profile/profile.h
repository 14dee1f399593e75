#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <optional>

#include "base/compute_type.h"
#include "base/status.h"
#include "client/profile/target.h"
#include "planner/profile.h"

namespace elixir {

struct ProfileOptions {
  std::string model = {};                  // its name, for people
  uint64_t tokens = 0;                     // of a step; 0: not known
  ComputeType dtype = ComputeType::kFp32;  // parameters are read in it, however they are built
  std::optional<ComputeType> buffer_dtype = {};  // of floating-point buffers; empty: their own
  ProfileTarget target = ProfileTarget::kCuda;   // whose kernels' memory is modelled
};

using LossOn = std::function<at::Tensor(at::Device)>;

// One step of `model`, forward and backward, on the meta device: nothing is computed, no memory of
// the tensors' size is touched. The module may lie anywhere (built under MetaInit: nowhere); for
// the call its parameters are replaced by meta tensors of `dtype`, and its buffers by such ones.
// Its mode (train(), eval()) and its gradients stay as they are. As Elixir does, each parameter's
// gradient is taken away as soon as it is complete. Call from one thread at a time; backward runs
// on it.
//
// kUnavailable, with the operator's name, when one has no kernel for meta tensors. What the module
// throws otherwise passes through.
Result<planner::ModelProfile> profile_step(torch::nn::Module& model, const LossOn& loss,
                                           const ProfileOptions& options);

// The same step on the CPU with torch's memory counted; `measured` is set. The module must lie
// there, or remember its values (MetaInit): then it is materialised for the call.
planner::ModelProfile measure_step(torch::nn::Module& model, const LossOn& loss,
                                   const ProfileOptions& options);

// profile_step(), or, where an operator has no meta kernel, measure_step(); says so in the log.
planner::ModelProfile profile_or_measure(torch::nn::Module& model, const LossOn& loss,
                                         const ProfileOptions& options);

}  // namespace elixir
