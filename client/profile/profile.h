#pragma once

#include <functional>
#include <optional>

#include "base/compute_type.h"
#include "base/status.h"
#include "client/tensors/model_tensors.h"
#include "client/tensors/profile_target.h"
#include "planner/profile.h"

namespace elixir {

struct ProfileOptions {
  std::string model = {};                        // its name, for people
  uint64_t tokens = 0;                           // per step; 0: not known
  ComputeType dtype = ComputeType::kFp32;        // type of the parameters, however they were built
  std::optional<ComputeType> buffer_dtype = {};  // type of floating-point buffers; empty: their own
  ProfileTarget target = ProfileTarget::kCuda;   // the device whose kernels' memory is modelled
};

using LossOn = std::function<at::Tensor(at::Device)>;

// Runs one step of a model, forward and backward, on the meta device. It computes nothing and
// touches no memory of the tensors' size. The tensors may lie on any device (or on none, built
// under MetaInit). During the call, meta tensors replace the parameters (in `dtype`) and the
// buffers. Gradients stay as they are. As in a training, each parameter's
// gradient is taken away as soon as it is complete. Call it from one thread at a time; backward
// runs on that thread. If the model has checkpointed regions, the step runs four times, so that
// ModelProfile::regions tells what they could keep.
//
// Returns kUnavailable, with the operator's name, if an operator has no kernel for meta tensors.
// Other exceptions of the module pass through.
Result<planner::ModelProfile> profile_step(const ModelTensors& model, const LossOn& loss,
                                           const ProfileOptions& options);

// Runs this step on the CPU, twice if it has checkpointed regions, and counts torch's memory;
// `measured` is set, and there are no ModelProfile::regions. The module must lie on
// the CPU or remember its values (MetaInit). In the second case it is materialised for the call.
planner::ModelProfile measure_step(const ModelTensors& model, const LossOn& loss,
                                   const ProfileOptions& options);

// Calls profile_step(), or measure_step() if an operator has no meta kernel. The log says so.
planner::ModelProfile profile_or_measure(const ModelTensors& model, const LossOn& loss,
                                         const ProfileOptions& options);

}  // namespace elixir
