#pragma once

// How a model is trained: everything but the model, its data and the optimizer's hyperparameters.

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

// The strategies of ZeRO (arXiv 1910.02054) and of Elixir (arXiv 2212.05339, table 1) as points
// between which a plan lies: how many gathered chunks are kept, all or as few as operators need.
// States are always sharded among ranks, so that kDdp and kZero1 are carried out as kZero2, with
// the same bytes moved. Where the states lie is Options::offload.
enum class Strategy : uint8_t { kNone, kDdp, kZero1, kZero2, kZero3, kRcacheMax, kRcacheMin };

// Names, defaults and meaning as in torch.amp.GradScaler: a step whose gradients are not all finite
// is skipped and the scale falls by backoff_factor; after growth_interval steps in a row that were
// not, it grows by growth_factor.
struct DynamicLossScale {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  uint32_t growth_interval = 2000;
};

// The link that a HostDevice emulates. GB/s of 1e9 bytes, greater than zero.
struct HostLink {
  double h2d_gb_s = 0, d2h_gb_s = 0;
  double joint_gb_s = 0;  // of both directions together; 0: no limit
  double latency_us = 0;  // of a copy
};

// None of it changes a bit of the weights, save dtype, the loss scale, clipping, the kind of
// device, and the exchange: the collective one rounds the sum of gradients to the compute type
// before the update, and NCCL sums in its own order from three ranks on.
struct Options {
  // Where the model computes: "cpu", or "cuda", with an index ("cuda:1") or without (then the local
  // rank counts). The module is built on the CPU all the same; its inputs must lie on
  // Optimizer::device().
  std::string device = "cpu";
  ComputeType dtype = ComputeType::kFp32;  // in which it computes; masters are FP32
  // Of floating-point buffers; empty: each keeps its own, as statistics and tables of angles need.
  std::optional<ComputeType> buffer_dtype = {};
  // Losses are multiplied by a scale, gradients divided by it (Optimizer::scale). FP16 needs one.
  double loss_scale = 1;
  std::optional<DynamicLossScale> dynamic_loss_scale = {};  // in its place
  // Empty: the plan's; without one early where layout.spare_slots asks for them, else deferred.
  std::optional<UpdateMode> update = {};
  // The greatest L2 norm of all gradients together; a greater one is scaled down to it, as
  // torch.nn.utils.clip_grad_norm_ does. Steps whose gradients are not finite are skipped then.
  std::optional<double> clip_norm = {};
  // outcome().grad_norm is there without clipping, too. Steps whose gradients are not finite are
  // skipped then.
  bool grad_norm = false;
  // What backward sums up of each parameter's gradient is kept, in FP32 on the device (4 bytes a
  // parameter), for Optimizer::gradient().
  bool keep_gradients = false;
  // Parameters for which it says true stay ordinary tensors, in the type they have, on the device:
  // norms in FP32, a part that another optimizer trains. Elixir neither updates them nor adds up
  // their gradients over ranks. The same on all ranks.
  std::function<bool(const std::string& name, const at::Tensor& parameter)> leave_out = {};
  // After every step rank 0's buffers become everyone's, as DistributedDataParallel's do with the
  // option of this name before every forward pass. The same on all ranks. Off: buffers are equal
  // at the start, and each rank's own from then on.
  bool broadcast_buffers = false;
  // Backward passes a step, 1 to 65536: an immediate update awaits so many, and memory is planned
  // for them. Their gradients are summed in FP32, whatever is said here. The caller divides the
  // losses by it if the mean is wanted, as with torch.
  uint32_t accumulate = 1;
  // chunk_numel 0: the shortest with little waste. rcache_blocks 0: a quarter, at least 4.
  // long_blocks 0: likewise, of the parameters that are longer than a chunk.
  // gpu_state_share empty: 0. exchange empty: host on one node, collective over several.
  // spare_slots empty: as many as there are chunks where `update` asks for early updates, as far as
  // the node has room. swing_stride empty: the plan's; without one 0. exchange, long_blocks,
  // spare_slots and swing_stride go into the plan (elixir::plan), and what it could not do of them
  // counts as it has it.
  LayoutOptions layout = {};
  // A folder: a checkpoint, or a plain Hugging Face model. Parameters come from there, and the
  // module gives no values (it may lie on the meta device); with load_states the run goes on from
  // there (Optimizer::load). Buffers, and parameters that are left out, come from there where it
  // has them.
  // "": the module's own values. Every rank must see it. Optimizer::loaded() tells what came.
  std::string load_from = {};
  bool load_states = true;
  // In the place of rcache_blocks and gpu_state_share: a strategy by name, with states in host
  // memory or on the device.
  Strategy strategy = Strategy::kNone;
  bool offload = true;
  // In the place of all these: what the planner chose (elixir::plan). The same on all ranks.
  std::shared_ptr<const planner::Plan> plan = {};
  uint64_t device_memory_bytes = 0;  // for torch and Elixir together; 0: as much as there is
  uint32_t workers = 0;              // elixird's threads for this job at most; 0: its choice
  // Threads of rank 0 that draw and load the initial values, which do not depend on it; 0: one for
  // every processor that this process may use.
  uint32_t load_threads = 0;
  // A file for the run's spans, in Chrome's trace format (rank r > 0: the same with .r); "": none.
  std::string trace = {};
  // On the CPU, to emulate another device: a link of this speed, and operators on parameters that
  // take at least so long.
  std::optional<HostLink> link = {};
  double operator_us = 0;
  double ranks_timeout_s = 600;  // for the other ranks of this node to attach and load
  std::string runtime_dir = {};  // elixird's sockets; "": as shm/runtime_folder.h says
  std::optional<LaunchEnvironment> environment = {};  // who this rank is; empty: as it is started
};

}  // namespace elixir
