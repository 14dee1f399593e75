#pragma once

// Elixir's C++ interface: an optimizer in the place of torch::optim::AdamW (or Adam) whose states,
// and all parameters but a few gathered chunks, live outside the device, in elixird.
//
//   auto model = std::make_shared<Net>();
//   elixir::AdamW optimizer(*model, {.lr = 1e-3});
//   for (...) {
//     optimizer.zero_grad();
//     auto loss = ...model->forward(...);
//     loss.backward();
//     optimizer.step();
//   }
//
// The module needs no change. From the construction of the optimizer on its parameters are views of
// chunks, gathered around the operators that read them, and can be read, printed, cloned and copied
// with state_dict at any time; with the collective exchange by all ranks alike. A raw pointer of a
// parameter whose chunk is not gathered is null and LibTorch's own checks throw; elixir::gathered()
// is the scope in which it is not.
//
// One thread builds, runs and steps a model. Errors are thrown as elixir::Error.

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/error.h"
#include "client/ranks/launch_environment.h"
#include "client/train/checkpoint.h"
#include "client/train/run_plan.h"

namespace elixir {

class Engine;

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

// How to run; the plan. None of it changes a bit of the weights, save dtype, loss_scale, the kind
// of device, and the exchange: the collective one rounds the sum of gradients to the compute type
// before the update, and NCCL sums in its own order from three ranks on.
struct RuntimeOptions {
  // Where the model computes: kCPU, or kCUDA, with an index or without (then the local rank
  // counts). The module is built on the CPU all the same; its inputs must lie on
  // Optimizer::device().
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;  // compute type: kFloat, kBFloat16, kHalf; masters are FP32
  double loss_scale = 1;              // the losses are multiplied by it; gradients are divided
  uint64_t chunk_numel = 0;           // elements a chunk; 0: the shortest with little waste
  uint32_t rcache_blocks = 0;         // gathered chunks at a time; 0: a quarter, at least 4
  double gpu_home_share = 0;          // of the chunks: their states live on the device, in [0, 1]
  ExchangeChoice exchange = ExchangeChoice::kAuto;  // between ranks
  uint64_t device_memory_bytes = 0;  // for torch and Elixir together; 0: as much as there is
  uint32_t workers = 0;              // elixird's threads for this job at most; 0: its choice
  std::string runtime_dir;           // elixird's sockets; "": as shm/runtime_folder.h says
  std::optional<LaunchEnvironment> environment;  // who this rank is; empty: from the environment
};

// The plan as it was carried out.
struct PlanSummary {
  uint64_t parameters_numel;  // of the model
  uint64_t chunk_numel;
  uint32_t n_chunks;
  uint32_t n_gpu_chunks;  // of them, of home gpu
  uint32_t rcache_blocks;
  shm::ExchangeKind exchange;
  std::string device;
  uint64_t pinned_bytes;  // of host memory, page-locked for the device
  double waste_ratio;
  uint64_t device_bytes;       // what Elixir holds on the device
  uint64_t model_state_bytes;  // 16 bytes a parameter: what training holds without Elixir
};

// What the last step() did on this rank.
struct StepStats {
  uint32_t step = 0;
  uint64_t gathers = 0;  // chunks copied into blocks
  uint64_t hits = 0;     // operators' chunks that were in a block already
  uint64_t evictions = 0;
  uint64_t h2d_bytes = 0;
  uint64_t d2h_bytes = 0;
  double update_numel_per_s = 0;  // elixird's rate in the last step that it has finished
};

class Optimizer {
 public:
  Optimizer(Optimizer&&) noexcept;
  // Waits for the last step's update. The model's parameters cannot be used afterwards.
  ~Optimizer();

  // Gives this step's gradients and hyperparameters to elixird and returns; the update runs on
  // while the caller goes on, and operators wait for their own chunks only. Waits for the gradients
  // to be computed, with the collective exchange and with chunks of home gpu on several ranks for
  // the other ranks' too. Parameters without a
  // gradient count as having a zero gradient. `loss` is what mean_loss() and `elixirctl status`
  // tell. Every rank must call it equally often. Throws when elixird or another rank is lost.
  void step(std::optional<double> loss = std::nullopt);

  // Drops the gradients that have come in since the last step. (step() does so too.)
  void zero_grad();

  double lr() const;
  void set_lr(double lr);  // from the next step on; the same on all ranks

  // The mean over ranks of the losses given to the last step(). Waits for the other ranks' step().
  // With the collective exchange all ranks must call it.
  double mean_loss();

  // Waits until the last step's update is done, and the device with all that was enqueued.
  void synchronize();

  const StepStats& stats() const;
  const PlanSummary& plan() const;
  const LaunchEnvironment& environment() const;

  // The xxh64 over all FP32 masters in the order of the parameters' names: equal for equal weights,
  // whatever the plan and the number of ranks. Waits for the last step. All ranks must call it.
  uint64_t weights_xxh64();

  // Where inputs must lie.
  at::Device device() const;

 protected:
  explicit Optimizer(std::unique_ptr<Engine> engine);

 private:
  std::unique_ptr<Engine> engine_;
};

// Takes the module's parameters that require gradients (others are cast to the compute type and
// left where they are), sends rank 0's values to elixird as everyone's initial weights, and
// replaces each by a view of its chunk. Blocks until all ranks have done so.
class AdamW : public Optimizer {
 public:
  explicit AdamW(torch::nn::Module& model, const AdamWOptions& options = {},
                 const RuntimeOptions& runtime = {});
};

class Adam : public Optimizer {
 public:
  explicit Adam(torch::nn::Module& model, const AdamOptions& options = {},
                const RuntimeOptions& runtime = {});
};

// Keeps the parameters' chunks gathered while it lives, so that data_ptr() and accessors work.
// Throws when the rCache has too few blocks for them together. No step() meanwhile.
class Gathered {
 public:
  explicit Gathered(const std::vector<at::Tensor>& parameters);
  Gathered(Gathered&&) noexcept;
  ~Gathered();

 private:
  struct Pins;
  std::unique_ptr<Pins> pins_;
};

[[nodiscard]] inline Gathered gathered(const std::vector<at::Tensor>& parameters) {
  return Gathered(parameters);
}

}  // namespace elixir
