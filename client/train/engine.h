#pragma once

// One rank's training run: ties the plan, the device, the session with elixird, the exchange
// between ranks, the rCache, and the hooks on the module's parameters together. Owned by the thread
// that runs the model; autograd may call back from one other thread while that one waits in
// backward().

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "client/chunk/chunk_plan.h"
#include "client/chunk/chunk_storage.h"
#include "client/device/make_device.h"
#include "client/device/pinned_ranges.h"
#include "client/elixir.h"
#include "client/exchange/connect_ranks.h"
#include "client/exchange/exchange.h"
#include "client/offload/grad_offload.h"
#include "client/offload/param_upload.h"
#include "client/rcache/rcache.h"
#include "client/session/session.h"
#include "client/train/module_parameters.h"
#include "client/train/run_plan.h"

namespace elixir {

class Engine final : public ChunkSource {
 public:
  // `device`: another one than runtime.device names.
  Engine(torch::nn::Module& model, const optim::AdamOptions& hyperparameters,
         const RuntimeOptions& runtime, std::optional<PlacedDevice> device = std::nullopt);
  ~Engine() override;

  void step(std::optional<double> loss);
  void zero_grad();
  double mean_loss();
  void synchronize();
  uint64_t weights_xxh64();

  optim::AdamOptions& hyperparameters() { return hyperparameters_; }
  const StepStats& stats() const { return stats_; }
  const PlanSummary& plan() const { return summary_; }
  const LaunchEnvironment& environment() const { return environment_; }
  at::Device device() const { return device_->torch_device(); }

  // ChunkSource
  void acquire(std::span<const uint32_t> chunks, const char* operator_name) override;
  void release(std::span<const uint32_t> chunks) noexcept override;

 private:
  struct GradHook;

  void attach(const RuntimeOptions& runtime);
  void make_views();
  void hook_gradients();
  void summarise();
  void forget_gathered();
  bool resident(uint32_t chunk) const { return resident_blocks_[chunk] != nullptr; }
  bool acquire_one(uint32_t chunk);
  void release_one(uint32_t chunk) noexcept;
  void check_views() const;
  shm::StepRecord verdict() const;
  void take_stats();

  // Constant after construction.
  const LaunchEnvironment environment_;
  const double loss_scale_;
  const at::ScalarType dtype_;
  std::vector<ModuleParameter> parameters_;
  const RunPlan run_plan_;
  PlanSummary summary_{};
  std::vector<c10::intrusive_ptr<ChunkStorage>> storages_;  // by chunk
  std::vector<std::byte*> blocks_;
  std::vector<std::byte*> resident_blocks_;  // by chunk; null: it is gathered into one of blocks_
  const std::shared_ptr<ChunkBinding> binding_;

  // In the order in which each needs those before it.
  PlacedDevice placed_device_;
  Device* const device_;
  ConnectedRanks ranks_;  // empty: the host exchange
  std::unique_ptr<Session> session_;
  std::unique_ptr<PinnedRanges> pinned_;
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<ParamUpload> param_upload_;
  std::unique_ptr<GradOffload> grad_offload_;
  std::unique_ptr<RCache> rcache_;

  optim::AdamOptions hyperparameters_;
  uint32_t step_ = 0;  // the last one posted
  double loss_ = 0;    // given to it
  StepStats stats_;
  StepStats counters_at_step_;  // running totals when the last step ended
  bool said_departed_ = false;
  std::atomic<bool> busy_{false};  // an acquire is going on: catches a second thread
};

}  // namespace elixir
