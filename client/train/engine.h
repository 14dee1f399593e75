#pragma once

// One rank's training run. It connects the plan, the device, the session with elixird, the exchange
// between ranks, the rCache, and the hooks on the module's parameters.
//
// Any thread may run operators and backward(): a mutex guards the state that they use
// (engine_operators.cpp, engine_gradients.cpp). Only one thread at a time may call step(),
// outcome() and the functions that ask about them, or end the optimizer. In a forked child every
// call throws.

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/fork.h"
#include "base/mutex.h"
#include "checkpoint/details.h"
#include "client/collectives/connect_ranks.h"
#include "client/device/pinned_ranges.h"
#include "client/elixir.h"
#include "client/exchange/exchange.h"
#include "client/exchange/swing_runner.h"
#include "client/plan/chunk_plan.h"
#include "client/plan/run_plan.h"
#include "client/rcache/rcache.h"
#include "client/session/session.h"
#include "client/step/input_upload.h"
#include "client/step/step_control.h"
#include "client/step/step_meter.h"
#include "client/step/step_trace.h"
#include "client/tensors/chunk_storage.h"
#include "client/torch_device/make_device.h"
#include "client/torch_device/torch_stream.h"
#include "client/train/activation_store.h"
#include "client/train/grad_offload.h"
#include "client/train/module_parameters.h"
#include "client/train/operator_gate.h"
#include "client/train/parameter_values.h"
#include "client/train/rates_keeper.h"
#include "client/train/save_request.h"
#include "client/train/says_collectives.h"
#include "client/train/step_losses.h"
#include "client/train/stored_run.h"
#include "client/train/taken_grads.h"

namespace elixir {

// `options` with the values that `changes` gives. Throws kInvalidArgument for values out of range.
optim::AdamOptions changed(const optim::AdamOptions& options, const ParamGroup& changes);

class Engine final : public ChunkSource {
 public:
  // `device` replaces options.device.
  Engine(const ModelTensors& model, const optim::AdamOptions& hyperparameters,
         const std::vector<ParamGroup>& groups, const Options& options,
         std::optional<PlacedDevice> device = std::nullopt);
  ~Engine() override;

  void step(std::optional<double> loss);
  void step(const at::Tensor& loss);
  void zero_grad();
  double loss_scale();
  StepOutcome outcome(uint32_t step);
  Roofline roofline(uint32_t step);
  at::Tensor to_device(const at::Tensor& values);
  void synchronize();
  uint64_t weights_xxh64();

  // ---- engine_parameters.cpp ----
  at::Tensor gradient(const at::Tensor& parameter) const;
  at::Tensor value(const at::Tensor& parameter);
  ParameterState state(const at::Tensor& parameter);
  void set_parameter(const at::Tensor& parameter, const at::Tensor& values);
  void set_parameters(const std::vector<NamedTensor>& values);
  std::vector<ParamGroup> param_groups() const;
  void set_param_group(uint32_t group, const ParamGroup& changes);
  uint32_t add_param_group(const ParamGroup& group);
  // `pull` fetches hyperparameters that were set elsewhere. With immediate updates, a thread that
  // runs backward() calls it before a step's hyperparameters are fixed. It may throw.
  void pull_before_fixing(std::function<void()> pull);
  void release_model();

  // ---- engine_checkpoint.cpp ----
  std::shared_ptr<SaveRequest> save(const std::string& folder, const SaveOptions& options);
  LoadReport load(const std::string& folder, bool states);
  const std::optional<LoadReport>& loaded() const { return loaded_; }
  uint64_t steps() const { return static_cast<uint64_t>(steps_before_ + control_.step()); }
  std::map<std::string, ParameterState> state_dict();

  StepControl& control() { return control_; }
  const StepStats& stats() const { return stats_; }
  const PlanSummary& plan() const { return summary_; }
  const LaunchEnvironment& environment() const { return environment_; }
  at::Device device() const { return torch_device(*device_); }

  // ChunkSource
  void acquire(std::span<const uint32_t> chunks, const char* operator_name) override;
  void release(std::span<const uint32_t> chunks) noexcept override;
  void hold(std::span<const uint32_t> chunks, const char* holder) override;
  void let_go(std::span<const uint32_t> chunks) noexcept override;
  std::string parameter_at(uint32_t chunk, int64_t offset) const override;
  void begin_scope() override;
  void end_scope() noexcept override;

  std::shared_ptr<ChunkBinding> binding() const { return binding_; }

  // Whether this process was forked from the one that built the engine.
  bool in_child() const { return forks() != forks_; }

 private:
  Engine(const ModelParts& model, const optim::AdamOptions& hyperparameters,
         const std::vector<ParamGroup>& groups, const Options& options,
         std::optional<PlacedDevice> device);
  struct GradHook;
  struct Block {
    std::byte* memory;
    DeviceEvent unused;  // the operators that read its content are done
    DeviceEvent filled;  // its content has arrived
  };

  // While it lives, no other thread's operator begins. Use it between two await_operators() of one
  // call.
  class ClosedGate {
   public:
    explicit ClosedGate(Engine& engine) : engine_(engine) { engine.gate_.close(); }
    ~ClosedGate();

   private:
    Engine& engine_;
  };

  void attach(const Options& options);
  void take_activations();
  std::optional<StoredRun> stored_run(const ModelParts& model, const Options& options) const;
  RunToLoad run_to_load(std::vector<NamedTensor> rest, bool states) const;
  std::optional<uint32_t> ask_for_load(const StoredRun& run, uint64_t device_hash)
      ELIXIR_REQUIRES(mutex_);
  Status await_load(const StoredRun& run, uint32_t number) ELIXIR_REQUIRES(mutex_);
  void load_run(const StoredRun& run, CollectiveKind call, uint32_t threads)
      ELIXIR_REQUIRES(mutex_);
  bool folder_ended(uint32_t number) ELIXIR_REQUIRES(mutex_);
  void go_on_from(const StoredRun& run);
  void say_other_hyperparameters(const checkpoints::Manifest& manifest) const;
  checkpoints::Details save_details(const SaveOptions& options);
  checkpoints::Manifest manifest_of(const SaveOptions& options);
  std::vector<checkpoints::ExtraValues> extras() const;
  void stage_device_chunks(uint32_t request, shm::Segment& staging) ELIXIR_REQUIRES(mutex_);
  void look_at_saves() ELIXIR_REQUIRES(mutex_);
  void end_saves() ELIXIR_REQUIRES(mutex_);
  std::vector<shm::ParameterPlace> trained_places() const;
  void make_views();
  void hook_gradients();
  void unhook_gradients();
  void summarise();
  void forget_gathered() ELIXIR_REQUIRES(mutex_);
  uint32_t n_trained() const { return run_plan_.shape.n_parameters; }
  bool has_own_block(uint32_t chunk) const { return own_blocks_[chunk] != nullptr; }
  void take_gradient(uint32_t parameter);
  bool take_out(uint32_t parameter, at::Tensor* grad);
  void take(uint32_t parameter, const at::Tensor& grad) ELIXIR_REQUIRES(mutex_);
  void require_none_lost() const ELIXIR_REQUIRES(mutex_);
  // Changes to a step's gradients that no hook has reported.
  struct Assigned {
    bool dropped = false;  // another optimizer's zero_grad() has dropped all that had come
    std::vector<std::pair<uint32_t, at::Tensor>> gradients = {};  // assigned by hand
  };
  Assigned assigned_gradients();
  at::Tensor take_assigned(uint32_t parameter);
  at::Tensor checked(uint32_t parameter, const at::Tensor& grad) const;
  void take_zeroed() ELIXIR_REQUIRES(mutex_);
  void check_all_have_gradients() const ELIXIR_REQUIRES(mutex_);
  void drop_gradients() ELIXIR_REQUIRES(mutex_);
  void pin(std::span<const uint32_t> chunks, const char* operator_name, MutexLock& lock)
      ELIXIR_REQUIRES(mutex_);
  void unpin(std::span<const uint32_t> chunks) noexcept ELIXIR_REQUIRES(mutex_);
  bool acquire_all(std::span<const uint32_t> chunks) ELIXIR_REQUIRES(mutex_);
  bool acquire_one(uint32_t chunk) ELIXIR_REQUIRES(mutex_);
  void release_one(uint32_t chunk) noexcept ELIXIR_REQUIRES(mutex_);
  void throw_if_failed() const ELIXIR_REQUIRES(mutex_);
  void await_operators(const char* who, MutexLock& lock) ELIXIR_REQUIRES(mutex_);
  void require_outside_operators(MutexLock& lock) ELIXIR_REQUIRES(mutex_);
  uint32_t index_of(const at::Tensor& parameter, const char* who) const;
  void require_between_steps(const char* who) const ELIXIR_REQUIRES(mutex_);
  void keep(uint32_t parameter, const at::Tensor& grad) ELIXIR_REQUIRES(mutex_);
  HeldValues held_values() const;
  void set_values(const char* who, NewValues& given);
  void forget(uint32_t chunk) ELIXIR_REQUIRES(mutex_);
  void throw_in_child(const char* operator_name) const;
  void finish() ELIXIR_REQUIRES(mutex_);
  void allocate_blocks();
  bool ready(uint32_t chunk);
  void fill(uint32_t chunk, const RCache::Placement& placement) ELIXIR_REQUIRES(mutex_);
  void gather(uint32_t first, const Block& block) ELIXIR_REQUIRES(mutex_);
  [[noreturn]] void throw_no_room(std::span<const uint32_t> chunks, const char* operator_name)
      ELIXIR_REQUIRES(mutex_);
  void prefetch() ELIXIR_REQUIRES(mutex_);
  void open_step() ELIXIR_REQUIRES(mutex_);
  void apply_device_update() ELIXIR_REQUIRES(mutex_);
  void end_rcache_step() ELIXIR_REQUIRES(mutex_);
  void bump_versions() ELIXIR_REQUIRES(mutex_);
  void check_views() const;
  bool has_its_view(uint32_t parameter) const;
  void warn_of_old_gradients() ELIXIR_REQUIRES(mutex_);
  void end_step(double loss, const double* late_loss);
  void add_stats(shm::StepRecord& record) ELIXIR_REQUIRES(mutex_);
  void take_times() ELIXIR_REQUIRES(mutex_);

  // Constant after construction.
  const uint32_t forks_ = forks();
  const LaunchEnvironment environment_;
  const at::ScalarType dtype_;
  std::vector<ModuleParameter> parameters_;
  const RunPlan run_plan_;
  PlanSummary summary_{};
  // Tensors in no chunk (buffers and left-out parameters), and the types that they were built with.
  struct Rest {
    std::string name;
    at::Tensor tensor;
    at::ScalarType built_as;
  };
  std::vector<Rest> rest_;
  std::vector<NamedTensor> shared_buffers_;  // all ranks get rank 0's values after every step
  const bool keeps_gradients_;
  // By chunk: the number of chunks in the storage (and the block) that begins with it
  // (RunPlan::run_lengths). Storages are by chunk, and null if that number is 0.
  const std::vector<uint32_t> runs_;
  std::vector<c10::intrusive_ptr<ChunkStorage>> storages_;
  std::vector<std::vector<int64_t>> sizes_;  // by parameter
  std::vector<Block> blocks_;                // long ones last, as RCache counts them
  std::vector<std::byte*> own_blocks_;       // by chunk; null: it is gathered into one of blocks_
  const std::shared_ptr<ChunkBinding> binding_;

  // Each of these members needs the ones before it.
  PlacedDevice placed_device_;
  Device* const device_;
  std::shared_ptr<ActivationStore> activation_store_;  // null: regions send nothing
  ConnectedRanks ranks_;                               // empty: the host exchange
  StepLosses losses_ ELIXIR_GUARDED_BY(mutex_);
  InputUpload inputs_ ELIXIR_GUARDED_BY(mutex_);
  std::unique_ptr<Session> session_;
  std::optional<SaysCollectives> says_collectives_;  // empty: the host exchange
  std::unique_ptr<PinnedRanges> pinned_;
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<SwingRunner> swing_runner_;  // null: no chunk swings
  std::unique_ptr<GradOffload> grad_offload_ ELIXIR_PT_GUARDED_BY(mutex_);
  std::unique_ptr<TakenGrads> taken_ ELIXIR_PT_GUARDED_BY(mutex_);
  // An error has lost a gradient of this step: it is neither in .grad nor on its way. The step must
  // not be made without it.
  bool lost_gradient_ ELIXIR_GUARDED_BY(mutex_) = false;
  std::vector<at::Tensor> kept_grads_ ELIXIR_GUARDED_BY(mutex_);  // by parameter, if any is kept
  uint32_t kept_step_ ELIXIR_GUARDED_BY(mutex_) = 0;              // of kept_grads_
  std::unique_ptr<RCache> rcache_ ELIXIR_PT_GUARDED_BY(mutex_);

  StepControl control_;
  std::function<void()> pull_ ELIXIR_GUARDED_BY(mutex_);  // empty: set nowhere else
  std::unique_ptr<StepTrace> trace_;                      // null: none is asked for
  StepMeter meter_ ELIXIR_GUARDED_BY(mutex_);
  // Empty: the plan is not the planner's, or another rank of this node has it.
  std::optional<RatesKeeper> rates_keeper_ ELIXIR_GUARDED_BY(mutex_);
  // The last step's update of chunks placed on the GPU waits for its verdict.
  bool device_update_pending_ ELIXIR_GUARDED_BY(mutex_) = false;
  StepStats stats_;
  StepStats counters_at_step_;               // running totals when the last step ended
  StepLegs legs_ ELIXIR_GUARDED_BY(mutex_);  // the last step's whose times are known
  static constexpr uint32_t kKeptRooflines = 4;
  Roofline rooflines_[kKeptRooflines] ELIXIR_GUARDED_BY(mutex_);  // by step
  bool said_departed_ = false;
  bool said_old_gradients_ = false;
  // The device's first error at a place that must not throw; the next call throws it.
  std::exception_ptr failure_ ELIXIR_GUARDED_BY(mutex_);
  std::optional<LoadReport> loaded_;  // the folder that the run began with
  int64_t steps_before_ = 0;          // the run's step minus the session's
  std::vector<std::weak_ptr<SaveRequest>> saves_ ELIXIR_GUARDED_BY(mutex_);
  // Locks of folders that this rank has saved into.
  std::vector<std::shared_ptr<const UniqueFd>> locks_ ELIXIR_GUARDED_BY(mutex_);

  // Also guards the device, the exchange and the session, except calls that wait for elixird or
  // other ranks, and those of the swing runner.
  mutable Mutex mutex_;
  CondVar unpinned_;  // signalled when an operator, or another holder of a block, has ended
  OperatorGate gate_;
  // The number of operators that enclose an operator that waits for a block.
  uint32_t waiting_inside_ ELIXIR_GUARDED_BY(mutex_) = 0;
};

}  // namespace elixir
