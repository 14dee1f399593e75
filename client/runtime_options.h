#pragma once

// How a model is trained: everything but the optimizer's hyperparameters.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/device/host_link.h"
#include "client/plan/loss_scale.h"
#include "client/plan/run_plan.h"
#include "client/plan/training_plan.h"
#include "client/plan/update_mode.h"
#include "client/ranks/launch_environment.h"

namespace elixir {

// Parameters with a learning rate or a weight decay of their own, as torch::optim's
// OptimizerParamGroup. What is not given is the optimizer's.
struct ParamGroup {
  std::vector<at::Tensor> parameters = {};
  std::optional<double> lr = {};
  std::optional<double> weight_decay = {};
};

// How to run; the plan. None of it changes a bit of the weights, save dtype, the loss scale,
// clipping, the kind of device, accumulate (where backward runs more than once a step), and the
// exchange: the collective one rounds the sum of gradients to the compute type before the update,
// and NCCL sums in its own order from three ranks on.
struct RuntimeOptions {
  // Where the model computes: kCPU, or kCUDA, with an index or without (then the local rank
  // counts). The module is built on the CPU all the same; its inputs must lie on
  // Optimizer::device().
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;  // compute type: kFloat, kBFloat16, kHalf; masters are FP32
  // Losses are multiplied by a scale, gradients divided by it (Optimizer::scale). FP16 needs one.
  double loss_scale = 1;
  std::optional<DynamicLossScale> dynamic_loss_scale = {};  // in its place
  UpdateMode update = UpdateMode::kDeferred;
  // The greatest L2 norm of all gradients together; a greater one is scaled down to it, as
  // torch.nn.utils.clip_grad_norm_ does. Steps whose gradients are not finite are skipped then.
  std::optional<double> clip_norm = {};
  // Backward passes a step, 1 to kMaxAccumulate; above 1 their gradients are summed in FP32. The
  // caller divides the losses by it if the mean is wanted, as with torch.
  uint32_t accumulate = 1;
  uint64_t chunk_numel = 0;    // elements a chunk; 0: the shortest with little waste
  uint32_t rcache_blocks = 0;  // gathered chunks at a time; 0: a quarter, at least 4
  double gpu_home_share = 0;   // of the chunks: their states live on the device, in [0, 1]
  // In the place of these two: a named strategy, with states in host memory or on the device.
  Strategy strategy = Strategy::kNone;
  bool offload = true;
  // In the place of all these: what the planner chose. The same on all ranks.
  std::optional<TrainingPlan> plan = {};
  ExchangeChoice exchange = ExchangeChoice::kAuto;  // between ranks
  uint64_t device_memory_bytes = 0;  // for torch and Elixir together; 0: as much as there is
  uint32_t workers = 0;              // elixird's threads for this job at most; 0: its choice
  // Threads of rank 0 that draw and load the initial values, which do not depend on it; 0: one for
  // every processor that this process may use.
  uint32_t load_threads = 0;
  // A file for the run's spans, in Chrome's trace format (rank r > 0: the same with .r); "": none.
  std::string trace;
  // With kCPU, to play another device: a link of this speed, and operators on parameters that take
  // at least so long.
  std::optional<HostLink> link = {};
  double operator_us = 0;
  std::string runtime_dir;  // elixird's sockets; "": as shm/runtime_folder.h says
  std::optional<LaunchEnvironment> environment;  // who this rank is; empty: from the environment
};

}  // namespace elixir
