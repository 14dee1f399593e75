#pragma once

// Elixir's C++ interface: an optimizer that replaces torch::optim::AdamW (or Adam). Its states, and
// all parameters except a few gathered chunks, live outside the device, in elixird.
//
//   auto model = std::make_shared<Net>();
//   elixir::AdamW optimizer(*model, {.lr = 1e-3});
//   for (...) {
//     optimizer.zero_grad();
//     auto loss = ...model->forward(...);
//     loss.backward();
//     optimizer.step(loss);
//   }
//
// The module needs no change. Once you have built the optimizer, parameters are views of chunks,
// which are gathered around the operators that read them. You can read, print, clone and copy them
// with state_dict at any time; with the collective exchange, all ranks must do the same. If you ask
// for a raw pointer to a parameter whose chunk is not gathered, LibTorch throws. elixir::gathered()
// gathers it for a scope.
//
// Operators and backward() may run in any thread. Only one thread at a time may call step() and the
// functions that ask about steps. Errors are thrown as elixir::Error, and name the parameter and
// the remedy.

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/export.h"
#include "client/plan/options.h"
#include "client/plan/step_report.h"
#include "client/saving.h"
#include "client/tensors/checkpoint.h"
#include "client/tensors/linear_cross_entropy.h"
#include "client/tensors/meta_init.h"
#include "client/tensors/model_tensors.h"

namespace torch::optim {
class Optimizer;
}

namespace elixir {

class Engine;
class TorchOptimizer;

// Call this at the start of a program, before it uses torch, if you know where it will compute.
// With kCPU, nothing can load CUDA in this process afterwards. With kCUDA, it loads CUDA now, or
// throws and says what is missing.
ELIXIR_PUBLIC void prepare_torch(c10::DeviceType type);

// Lets the program end waits, as Ctrl-C does in Python. Sets a function that threads call while
// they wait in a call of Elixir for elixird or other ranks: each at most ten times a second. An
// exception of the function leaves that call. An empty function removes it. REQUIRES: no thread
// waits.
//
// You may make the call again afterwards, except in three cases. If other ranks or elixird were in
// the middle of it (load(), set_parameter(), release()), later calls throw kUnavailable. After
// backward(), call zero_grad() and run it again. A save continues without you.
// If you end the optimizer instead, it does not wait for the last step, and the other ranks learn
// that this one died.
//
// The function may run in any thread, while Elixir holds locks. It must not call Elixir, and must
// not use parameters. A wait in a collective can be left with NCCL, and not with Gloo.
ELIXIR_PUBLIC void set_interrupt_check(std::function<void()> check);

// Parameters with their own hyperparameters, like torch::optim's OptimizerParamGroup. Missing
// values are the optimizer's.
struct ParamGroup {
  std::vector<at::Tensor> parameters = {};
  std::optional<double> lr = {};
  std::optional<double> weight_decay = {};
  std::optional<std::pair<double, double>> betas = {};
  std::optional<double> eps = {};
};

// Returns the mean loss of one micro-batch whose inputs are on the given device. It must call the
// module's forward: Elixir sees operators, not calls.
using LossOn = std::function<at::Tensor(at::Device)>;

// The planner's choice for this model and these options on this machine, for Options::plan. It
// first traces one step of `tokens` tokens (all sequences together) on the meta device. Then it
// simulates layouts with the rates that were measured for this hardware. The first call on new
// hardware measures them, in at most 20 s (ELIXIR_PROBE=0 forbids that). All ranks must call it,
// and all get the same plan.
//
//   options.plan = elixir::plan(*model, [&](at::Device d) { return loss_of(batch.to(d)); }, 4096,
//                               options);
//
// Returns null in three cases, and the optimizer then chooses: the options ask for a layout; the
// device is the CPU and device_memory_bytes is 0, so that nothing is scarce; or the rates are not
// known. The log has a line if this was not your choice.
// Throws kResourceExhausted if nothing fits, and says what is missing.
ELIXIR_PUBLIC std::shared_ptr<const planner::Plan> plan(torch::nn::Module& model,
                                                        const LossOn& loss, uint64_t tokens,
                                                        const Options& options);
// The same for a model of another library: Elixir gets its tensors, and `loss` runs it.
ELIXIR_PUBLIC std::shared_ptr<const planner::Plan> plan(const ModelTensors& model,
                                                        const LossOn& loss, uint64_t tokens,
                                                        const Options& options);

// A plan as `elixirctl plan --json` prints it, and back. Throws kBadInput for a text that is no
// plan.
ELIXIR_PUBLIC std::string plan_json(const planner::Plan& plan);
ELIXIR_PUBLIC std::shared_ptr<const planner::Plan> plan_from_json(const std::string& text);

// Options::activations in words, as of elixir-train's --activations: "auto", "recompute", "keep",
// "products:8", "host", "host:20GiB". Throws kInvalidArgument, with these names, for another text.
ELIXIR_PUBLIC Activations activations_of(const std::string& text);

class ELIXIR_PUBLIC Optimizer {
 public:
  Optimizer(Optimizer&&) noexcept;
  // Waits for the last step's update. You cannot use the model's parameters afterwards, unless you
  // called release() before.
  ~Optimizer();

  // Ends the step. Parameters without a gradient stay as they are, states included. Returns at
  // once: elixird updates in the background, and operators wait only for their own chunks. (It
  // waits for gradients with the collective exchange, and with clipping if chunks are placed on the
  // GPU; with UpdateMode::kSync also for the update.) outcome() and `elixirctl status` report
  // `loss`. All ranks must call it the same number of times. Throws when elixird or another rank is
  // lost.
  void step(std::optional<double> loss = std::nullopt);
  // step() with a loss of one number that the device may still be computing. Elixir copies the loss
  // to the host when it is known, and nobody waits. (loss.item() waits for the device.)
  void step(const at::Tensor& loss);

  // Drops the gradients that have come in since the last step. (step() does this, too.)
  void zero_grad();

  // The factor for the loss of the next backward pass; scale() returns loss * loss_scale(). A
  // dynamic one waits until the last step is decided.
  double loss_scale();
  at::Tensor scale(const at::Tensor& loss);

  // Group 0 holds the parameters that are in none of the given groups. The given groups follow in
  // their order. Changes count from the next step on and must be the same on all ranks. Without
  // `group`, set_lr() sets all groups: each keeps its initial ratio to group 0 (all get one value
  // if group 0 began with 0).
  double lr(uint32_t group = 0) const;
  void set_lr(double lr, uint32_t group);
  void set_lr(double lr);
  uint32_t n_groups() const;

  // Every group with all of its current hyperparameters.
  std::vector<ParamGroup> param_groups() const;
  // Sets the values that `changes` gives, from the next step on. Its parameters must be empty.
  void set_param_group(uint32_t group, const ParamGroup& changes);
  // Moves parameters of group 0 into a new group and returns its number, at most
  // shm::kMaxParamGroups - 1 (63). Their states and counts of steps continue. Call it between
  // step() and backward(), on all ranks.
  uint32_t add_param_group(const ParamGroup& group);
  // This optimizer as torch's class, for torch::optim::LRScheduler and other users. Its groups'
  // options are torch's own (AdamWOptions or AdamOptions); lr, betas, eps and weight_decay are the
  // values that were set last, in torch's class or here. Its step() and zero_grad() call those of
  // this class. Values set in torch's class are checked when they are needed, at the latest in
  // step(). It lives as long as the optimizer, also after a move or release().
  torch::optim::Optimizer& torch_optimizer();

  // Clips gradients to this norm from the next step on; empty: not at all. All ranks set the same.
  // The optimizer must have been built with Options::clip_norm or grad_norm.
  void set_clip_norm(std::optional<double> clip_norm);

  // ---- single parameters; all ranks, unless said otherwise ----

  // With Options::keep_gradients: a copy of the parameter's gradient as backward has summed it on
  // this rank. It is this step's, or, until the next backward() or zero_grad(), the last step's. It
  // is FP32, on the device, and undefined if there is none. Any rank may call it.
  at::Tensor gradient(const at::Tensor& parameter) const;
  // Sets the parameter to rank 0's `values`, of the same sizes, on any device. Moments and the
  // count of steps stay. It costs a pass over the chunk. Call it between step() and backward().
  void set_parameter(const at::Tensor& parameter, const at::Tensor& values);
  // set_parameter() for several parameters, by their names. Each chunk is written once, and the
  // ranks agree once (once more for each chunk of frozen parameters that is given in part).
  void set_parameters(const std::vector<NamedTensor>& values);
  // A copy of a parameter as it is after the last step, in the compute type, on the CPU. Any rank
  // may call it, alone: elixird has the shards of all ranks of a node. It waits for all ranks to
  // make that step. Throws on several nodes, and with the collective exchange for a parameter whose
  // states are on GPUs. Call it between step() and backward().
  at::Tensor value(const at::Tensor& parameter);
  // In the same way, the FP32 values and states of a trained parameter: state_dict() for one.
  ParameterState state(const at::Tensor& parameter);
  // Ends training and keeps the model. Every parameter becomes an ordinary tensor on the CPU again.
  // It has the type that it was built with, and the values of the FP32 masters. Buffers return to
  // the CPU, too. It needs memory for the whole model in this process.
  void release();

  // The outcome of the last step, or of the one before it. Waits for the other ranks' step(). With
  // the collective exchange all ranks must call it.
  StepOutcome outcome();
  StepOutcome outcome(uint32_t step);
  double mean_loss() { return outcome().mean_loss; }

  // Waits until the last step's update, and all enqueued work of the device, is done.
  void synchronize();

  const StepStats& stats() const;
  // How `step`, one of the last four, spent its time. It does not block: on a GPU the result's
  // `step` is 0 until the times are known. They are known once outcome(step) has returned.
  Roofline roofline(uint32_t step);
  // The chunks, the rCache, the memory and the times of the start, as the optimizer was built.
  const PlanSummary& plan() const;
  const LaunchEnvironment& environment() const;

  // The xxh64 over all FP32 masters in the order of the parameters' names: equal for equal weights,
  // with any plan and any number of ranks. Waits for the last step. All ranks must call it.
  uint64_t weights_xxh64();

  // ---- checkpoints; all ranks; docs/training.md, "Checkpoints" ----

  // Starts to write the run, as it is after the last step(), into a new folder. The folder's parent
  // must exist. elixird writes it while training continues. Call it between step() and backward(),
  // on one node. Throws if the save is impossible; Saving::wait() reports later failures.
  Saving save(const std::string& folder, const SaveOptions& options = {});
  // Loads the parameters of a checkpoint or a plain Hugging Face model, saved by any number of
  // ranks in any layout. With `states` the run resumes from there, with moments, counts and loss
  // scale (or from their initial values if the folder has none). Hyperparameters stay this run's.
  // Without `states`, it does what set_parameter() does for each parameter. Call it between step()
  // and backward(). Throws kBadInput, before anything is changed, if names or shapes differ. If it
  // finds damaged bytes after that, the job ends.
  LoadReport load(const std::string& folder, bool states = true);
  // The result of Options::load_from.
  const std::optional<LoadReport>& loaded() const;
  // Steps since the run first began: those of the loaded folder, and those made here.
  uint64_t steps() const;
  // Asks all ranks, with the next step(), to save or to stop: each sees it in that step's
  // outcome(). Any rank may call it.
  void ask_all(bool save, bool stop);
  // The values that torch::optim's state_dict() has, by the names of trained parameters. Needs 12
  // bytes per parameter in this process. Call it between step() and backward(). A parameter's count
  // includes steps in which only other ranks had its gradient.
  std::map<std::string, ParameterState> state_dict();

  // The device on which inputs must lie.
  at::Device device() const;
  // Copies the values to that device through Elixir's page-locked memory. The caller does not wait
  // for the device and may change `values` at once. Returns `values` themselves if they are there
  // already.
  at::Tensor to_device(const at::Tensor& values);

 protected:
  explicit Optimizer(std::unique_ptr<Engine> engine);

 private:
  friend class Consistent;
  Engine& engine() const;                            // throws after release()
  Engine& pulled_engine() const;                     // after taking settings from torch_optimizer()
  void push() const;                                 // copies the engine's settings to
                                                     // torch_optimizer()
  std::unique_ptr<TorchOptimizer> torch_optimizer_;  // null: nobody asked for it
  std::unique_ptr<Engine> engine_;                   // null: released, or moved from
  bool released_ = false;
};

// Takes the module's parameters. Parameters that do not require gradients are rounded to the
// compute type and have no states. Sends rank 0's values to elixird as everyone's initial weights,
// and replaces each parameter by a view of its chunk. Blocks until all ranks have done so. If no
// parameter requires gradients, you can run the model, but not step it.
class ELIXIR_PUBLIC AdamW : public Optimizer {
 public:
  explicit AdamW(const ModelTensors& model, const AdamWOptions& hyperparameters = {},
                 const Options& options = {}, const std::vector<ParamGroup>& groups = {});
  explicit AdamW(torch::nn::Module& model, const AdamWOptions& hyperparameters = {},
                 const Options& options = {}, const std::vector<ParamGroup>& groups = {});
};

class ELIXIR_PUBLIC Adam : public Optimizer {
 public:
  explicit Adam(const ModelTensors& model, const AdamOptions& hyperparameters = {},
                const Options& options = {}, const std::vector<ParamGroup>& groups = {});
  explicit Adam(torch::nn::Module& model, const AdamOptions& hyperparameters = {},
                const Options& options = {}, const std::vector<ParamGroup>& groups = {});
};

// Saves only the model, as a Hugging Face folder, in the compute type, with `files` (config.json)
// beside it. Returns when it is complete. All ranks call it; `files` are rank 0's.
ELIXIR_PUBLIC void save_model(Optimizer& optimizer, const std::string& folder,
                              const std::vector<std::pair<std::string, std::string>>& files = {});

// Keeps the parameters' chunks gathered while it lives, so that data_ptr() and accessors work.
// Throws when the rCache has too few blocks for them together. Do not call step() while it lives.
class ELIXIR_PUBLIC Gathered {
 public:
  explicit Gathered(const std::vector<at::Tensor>& parameters);
  Gathered(Gathered&&) noexcept;
  ~Gathered();

 private:
  struct Pins;
  std::unique_ptr<Pins> pins_;
};

// Holds one step while it lives: step() and other calls that wait for operators also wait for the
// scope's end. Until then operators of any thread read the weights of that step. Without a scope, a
// pass that runs beside step() in another thread may read some chunks after one step and others
// after the next. Calling step() in the scope's thread is an error. In a thread that the scope
// waits for, step() never returns.
class ELIXIR_PUBLIC Consistent {
 public:
  explicit Consistent(const Optimizer& optimizer);
  Consistent(Consistent&&) noexcept;
  ~Consistent();

 private:
  struct Scope;
  std::unique_ptr<Scope> scope_;
};

[[nodiscard]] inline Consistent consistent(const Optimizer& optimizer) {
  return Consistent(optimizer);
}

[[nodiscard]] inline Gathered gathered(const std::vector<at::Tensor>& parameters) {
  return Gathered(parameters);
}

// Whether the tensor's memory can be read through a pointer now. False for a parameter that is not
// gathered, and for views of it. Any thread.
ELIXIR_PUBLIC bool readable(const at::Tensor& tensor);
ELIXIR_PUBLIC bool readable(const c10::Storage& storage);

}  // namespace elixir
