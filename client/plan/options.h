#pragma once

// The options of a training: everything except the model, its data and the optimizer's
// hyperparameters.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/compute_type.h"
#include "client/ranks/launch_environment.h"
#include "planner/choices.h"

namespace at {
class Tensor;
}

namespace elixir {

namespace planner {
struct Plan;
}

// Names, defaults and meaning as in torch::optim::AdamWOptions.
struct AdamWOptions {
  double lr = 1e-3;
  std::pair<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;
};

// Names, defaults and meaning as in torch::optim::AdamOptions: the decay is added to the gradient.
struct AdamOptions {
  double lr = 1e-3;
  std::pair<double, double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
};

// The strategies of ZeRO (arXiv 1910.02054) and of Elixir (arXiv 2212.05339, table 1). They are
// extreme points, and a plan lies between them. A strategy keeps all gathered chunks, or as few as
// operators need. States are always sharded among ranks, so kDdp and kZero1 run as kZero2 and move
// the same bytes. Options::offload says where the states are.
enum class Strategy : uint8_t { kNone, kDdp, kZero1, kZero2, kZero3, kRcacheMax, kRcacheMin };

// Names, defaults and meaning as in torch.amp.GradScaler. A step whose gradients are not all finite
// is skipped, and the scale is multiplied by backoff_factor. After growth_interval steps in a row
// without a skip, it is multiplied by growth_factor.
struct DynamicLossScale {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  uint32_t growth_interval = 2000;
};

// The link that a HostDevice emulates. Rates are in GB/s of 1e9 bytes, greater than zero.
struct HostLink {
  double h2d_gb_s = 0, d2h_gb_s = 0;
  double joint_gb_s = 0;  // both directions together; 0: no limit
  double latency_us = 0;  // per copy
};

// No option changes a bit of the weights, except dtype, the loss scale, clipping, the kind of
// device, and the exchange. The collective exchange rounds the sum of gradients to the compute type
// before the update, and NCCL sums in its own order from three ranks on.
struct Options {
  // The device on which the model computes: "cpu", or "cuda" with an index ("cuda:1") or without
  // (then the local rank is the index). You still build the module on the CPU; its inputs must be
  // on Optimizer::device().
  std::string device = "cpu";
  ComputeType dtype = ComputeType::kFp32;  // the model computes in it; masters are FP32
  // The type of floating-point buffers. Empty: each keeps its own type, because statistics and
  // tables of angles need it.
  std::optional<ComputeType> buffer_dtype = {};
  // Losses are multiplied by a scale, gradients divided by it (Optimizer::scale). FP16 needs one.
  double loss_scale = 1;
  std::optional<DynamicLossScale> dynamic_loss_scale = {};  // replaces loss_scale
  // Empty: the plan's mode. Without a plan: early if layout.spare_slots asks for spare slots, else
  // deferred.
  std::optional<UpdateMode> update = {};
  // The greatest L2 norm of all gradients together; larger gradients are scaled down to it, as by
  // torch.nn.utils.clip_grad_norm_. It also skips steps whose gradients are not finite.
  std::optional<double> clip_norm = {};
  // Provides outcome().grad_norm without clipping. It also skips steps whose gradients are not
  // finite.
  bool grad_norm = false;
  // Keeps each parameter's gradient, as backward sums it up, for Optimizer::gradient(): FP32 on the
  // device, 4 bytes per parameter.
  bool keep_gradients = false;
  // Parameters for which it returns true stay ordinary tensors of their own type, on the device.
  // Examples are norms in FP32, or a part that another optimizer trains. Elixir neither updates
  // them nor adds up their gradients over ranks. It must return the same on all ranks.
  std::function<bool(const std::string& name, const at::Tensor& parameter)> leave_out = {};
  // Writes the plan to the log once, as one line, on the first rank of each node.
  bool log_plan = true;
  // Copies rank 0's buffers to all ranks after every step. (DistributedDataParallel does that
  // before every forward pass, with the option of this name.) Must be the same on all ranks. If it
  // is off, buffers are equal at the start, and each rank has its own from then on.
  bool broadcast_buffers = false;
  // Backward passes per step, 1 to 65536. An immediate update waits for all of them, and memory is
  // planned for them. Gradients of several passes are always summed in FP32. Divide the losses by
  // this number if you want the mean, as with torch.
  uint32_t accumulate = 1;
  // chunk_numel 0: the shortest length with little waste. rcache_blocks 0: a quarter of the chunks,
  // at least 4. long_blocks 0: the same rule for parameters that are longer than a chunk.
  // gpu_state_share empty: 0. exchange empty: host on one node, collective on several. spare_slots
  // empty: one per chunk if `update` asks for early updates, as far as the node has room.
  // swing_stride empty: the plan's, or 0 without a plan.
  //
  // exchange, long_blocks, spare_slots and swing_stride go into the plan (elixir::plan). If it
  // could not follow them, the plan's values count.
  LayoutOptions layout = {};
  // What elixir::checkpoint() keeps between a function's two runs. It holds for all regions of this
  // process, until another optimizer is made. kProducts without a plan: the number of regions is
  // known from the second pass on.
  Activations activations = {};
  // A folder: a checkpoint, or a plain Hugging Face model. Parameters come from the folder and not
  // from the module, which may be on the meta device. With load_states the run resumes from the
  // folder (Optimizer::load). Buffers and left-out parameters come from the folder if it has them.
  // "": the module's own values. Every rank must see the folder. Optimizer::loaded() reports the
  // result.
  std::string load_from = {};
  bool load_states = true;
  // Replaces rcache_blocks and gpu_state_share: a strategy by name, with states in host memory or
  // on the device.
  Strategy strategy = Strategy::kNone;
  bool offload = true;
  // The planner's choice (elixir::plan). It replaces layout, strategy and offload. Must be the same
  // on all ranks.
  std::shared_ptr<const planner::Plan> plan = {};
  // Host memory that each rank's program needs beside Elixir, for example for activations if the
  // device is the CPU. The check whether a training fits counts it. 0: not known.
  uint64_t program_bytes = 0;
  uint64_t device_memory_bytes = 0;  // for torch and Elixir together; 0: as much as there is
  uint32_t workers = 0;              // most threads of elixird for this job; 0: its choice
  // Threads of rank 0 that draw and load the initial values, which do not depend on their number.
  // 0: as many as can run at a time, given this process's processors and quota.
  uint32_t load_threads = 0;
  // A file for the run's spans, in Chrome's trace format (rank r > 0 appends .r); "": none.
  std::string trace = {};
  // To emulate another device on the CPU: a link of this speed, and a minimum time of operators on
  // parameters.
  std::optional<HostLink> link = {};
  double operator_us = 0;
  double ranks_timeout_s = 600;  // for the other ranks of this node to attach and load
  std::string runtime_dir = {};  // elixird's sockets; "": as shm/runtime_folder.h says
  std::optional<LaunchEnvironment> environment = {};  // this rank's place; empty: read from the
                                                      // environment
};

}  // namespace elixir
