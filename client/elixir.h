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
//     optimizer.step(loss);
//   }
//
// The module needs no change. From the construction of the optimizer on its parameters are views of
// chunks, gathered around the operators that read them, and can be read, printed, cloned and copied
// with state_dict at any time; with the collective exchange by all ranks alike. Who asks for a raw
// pointer of a parameter whose chunk is not gathered gets LibTorch's error; elixir::gathered() is
// the scope in which it is there.
//
// Operators and backward() may run in any thread; step() and what asks for steps in one at a time.
// Errors are thrown as elixir::Error, and name the parameter and the remedy.

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

namespace torch::optim {
class Optimizer;
}

namespace elixir {

class Engine;
class TorchOptimizer;

// For the start of a program that knows where it will compute, before it uses torch. kCPU: nothing
// loads CUDA in this process any more, whatever asks. kCUDA: loads it now, or throws with what is
// missing.
ELIXIR_PUBLIC void prepare_torch(c10::DeviceType type);

// A tensor under the name by which errors, plans and files know it.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// What an optimizer is built on. Its handles: replacing a tensor's data replaces the model's.
struct ModelTensors {
  std::vector<NamedTensor> parameters = {};
  std::vector<NamedTensor> buffers = {};
};

// A module's, each under its first name.
ELIXIR_PUBLIC ModelTensors tensors_of(const torch::nn::Module& model);

// Parameters with hyperparameters of their own, as torch::optim's OptimizerParamGroup. What is not
// given is the optimizer's.
struct ParamGroup {
  std::vector<at::Tensor> parameters = {};
  std::optional<double> lr = {};
  std::optional<double> weight_decay = {};
  std::optional<std::pair<double, double>> betas = {};
  std::optional<double> eps = {};
};

// The mean loss of one micro-batch, its inputs on the device given. It must call the module's
// forward: the operators are seen, not the calls.
using LossOn = std::function<at::Tensor(at::Device)>;

// What the planner chooses for this model and these options on this machine, for Options::plan: it
// looks at one step of `tokens` tokens (of all its sequences together) before it runs, on the meta
// device, and simulates layouts with what `elixirctl probe` measured (on a CPU with one rank: with
// what it measures now). The same on all ranks of a node.
//
//   options.plan = elixir::plan(*model, [&](at::Device d) { return loss_of(batch.to(d)); }, 4096,
//                               options);
//
// Null, which leaves the choice to the optimizer, with a line in the log where it is not by choice:
// the options ask for a layout; the device is the CPU and device_memory_bytes is 0, so that nothing
// is scarce; there are several nodes; the machine has not been measured. Throws
// kResourceExhausted where nothing fits, with what is lacking.
ELIXIR_PUBLIC std::shared_ptr<const planner::Plan> plan(torch::nn::Module& model,
                                                        const LossOn& loss, uint64_t tokens,
                                                        const Options& options);

class ELIXIR_PUBLIC Optimizer {
 public:
  Optimizer(Optimizer&&) noexcept;
  // Waits for the last step's update. The model's parameters cannot be used afterwards, unless
  // release() came before.
  ~Optimizer();

  // Ends the step: parameters without a gradient stay as they are, states included. Returns at
  // once; gradients go on to elixird, which updates behind whatever follows, and operators wait for
  // their own chunks only. (It waits for gradients: with the collective exchange, and with clipping
  // where chunks are placed on the GPU; with UpdateMode::kSync for the update, too.) `loss` is what
  // outcome() and `elixirctl status` tell. Every rank must call it equally often. Throws when
  // elixird or another rank is lost.
  void step(std::optional<double> loss = std::nullopt);
  // The same with a loss of one number that the device may be computing still: it is brought to the
  // host when it is known, and nobody waits. (loss.item() waits for the device.)
  void step(const at::Tensor& loss);

  // Drops the gradients that have come in since the last step. (step() does so too.)
  void zero_grad();

  // What the next backward pass's loss is to be multiplied by; loss * loss_scale(). Dynamic: waits
  // until the last step is decided.
  double loss_scale();
  at::Tensor scale(const at::Tensor& loss);

  // Group 0 holds the parameters that were given to no other; then come those given, in their
  // order. From the next step on; the same on all ranks. Without a group: of all of them, each in
  // the proportion to group 0's that it began with (all alike, where group 0 began with 0).
  double lr(uint32_t group = 0) const;
  void set_lr(double lr, uint32_t group);
  void set_lr(double lr);
  uint32_t n_groups() const;

  // Every group with all of its hyperparameters, as they are now.
  std::vector<ParamGroup> param_groups() const;
  // What `changes` gives (its parameters must be empty) is the group's from the next step on.
  void set_param_group(uint32_t group, const ParamGroup& changes);
  // Parameters of group 0 become a group of their own; returns its number, shm::kMaxParamGroups - 1
  // (7) at most. Their states and counts of steps go on. Between step() and backward(), on all
  // ranks.
  uint32_t add_param_group(const ParamGroup& group);
  // The same optimizer as torch's class, for torch::optim::LRScheduler and what else wants one: its
  // groups' options are torch's own (AdamWOptions or AdamOptions), of which lr, betas, eps and
  // weight_decay are what was set last, there or here; step() and zero_grad() are these. What is
  // set there is checked when something asks for it, at the latest in step(). It lives as long as
  // the optimizer does, a move or release() included.
  torch::optim::Optimizer& torch_optimizer();

  // ---- single parameters; all ranks, unless said otherwise ----

  // With Options::keep_gradients: a copy of what backward has summed up of the parameter's gradient
  // on this rank, in this step or, until the next backward() or zero_grad(), in the last; FP32, on
  // the device, undefined where there is none. Any rank.
  at::Tensor gradient(const at::Tensor& parameter) const;
  // The parameter's values become rank 0's `values`, of the same sizes, on any device; moments and
  // the count of steps stay. It costs a pass over its chunk. Between step() and backward().
  void set_parameter(const at::Tensor& parameter, const at::Tensor& values);
  // The end: every parameter becomes an ordinary tensor on the CPU again, of the type that it was
  // built with, with the values of the FP32 masters, and buffers come back there; the model lives
  // on. Needs the whole model in this process's memory.
  void release();

  // Of the last step, or the one before it. Waits for the other ranks' step(). With the collective
  // exchange all ranks must call it.
  StepOutcome outcome();
  StepOutcome outcome(uint32_t step);
  double mean_loss() { return outcome().mean_loss; }

  // Waits until the last step's update is done, and the device with all that was enqueued.
  void synchronize();

  const StepStats& stats() const;
  // Where the time of `step` went, of the last four. Waits for nothing: its `step` is 0 where that
  // is not known yet, on a GPU. It is when outcome(step) has returned.
  Roofline roofline(uint32_t step);
  const PlanSummary& plan() const;
  const LaunchEnvironment& environment() const;

  // The xxh64 over all FP32 masters in the order of the parameters' names: equal for equal weights,
  // whatever the plan and the number of ranks. Waits for the last step. All ranks must call it.
  uint64_t weights_xxh64();

  // ---- checkpoints; all ranks; docs/training.md, "Checkpoints" ----

  // Begins to write the run as it is after the last step() into a new folder, whose parent must be
  // there; elixird does it while training goes on. Between step() and backward(), on one node.
  // Throws what makes it impossible; what fails later is Saving::wait()'s to tell.
  Saving save(const std::string& folder, const SaveOptions& options = {});
  // The parameters become what the folder holds: a checkpoint's or a plain Hugging Face model's,
  // saved by any number of ranks in any layout. With `states` the run goes on from there, with
  // moments, counts and loss scale (where it has none, from the beginning); hyperparameters stay
  // this run's. Without, it is set_parameter() of all of them. Between step() and backward().
  // Throws kBadInput, before anything is changed, where names or shapes differ; where bytes turn
  // out to be damaged after that, the job ends.
  LoadReport load(const std::string& folder, bool states = true);
  // What Options::load_from brought.
  const std::optional<LoadReport>& loaded() const;
  // Since the run's first beginning: those of what was loaded, and those made here.
  uint64_t steps() const;
  // Asks all ranks, with the next step(), to save or to stop: each sees it in that step's
  // outcome(). Any rank may.
  void ask_all(bool save, bool stop);
  // By the names of trained parameters, what torch::optim's state_dict() has. Needs 12 bytes a
  // parameter in this process. Between step() and backward(). With the host exchange a rank counts
  // the steps in which it had a gradient of the parameter itself.
  std::map<std::string, ParameterState> state_dict();

  // Where inputs must lie.
  at::Device device() const;
  // A tensor of the same values there, through page-locked memory of Elixir's: the caller waits for
  // no device, and may change `values` at once. Where they lie there already: themselves.
  at::Tensor to_device(const at::Tensor& values);

 protected:
  explicit Optimizer(std::unique_ptr<Engine> engine);

 private:
  friend class Consistent;
  Engine& engine() const;                            // throws after release()
  Engine& pulled_engine() const;                     // with what was set through torch_optimizer()
  void push() const;                                 // what the engine has, into torch_optimizer()
  std::unique_ptr<TorchOptimizer> torch_optimizer_;  // null: nobody asked for it
  std::unique_ptr<Engine> engine_;                   // null: released, or moved from
  bool released_ = false;
};

// Takes the module's parameters; those that do not require gradients are rounded to the compute
// type and have no states. Sends rank 0's values to elixird as everyone's initial weights, and
// replaces each by a view of its chunk. Blocks until all ranks have done so. A model of which
// nothing requires gradients is served, too: it can be run, and not stepped.
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

// The model alone, as a Hugging Face folder, in the type it computes in, with these files
// (config.json) beside; returns when it is there. All ranks; `files` are rank 0's.
ELIXIR_PUBLIC void save_model(Optimizer& optimizer, const std::string& folder,
                              const std::vector<std::pair<std::string, std::string>>& files = {});

// Keeps the parameters' chunks gathered while it lives, so that data_ptr() and accessors work.
// Throws when the rCache has too few blocks for them together. No step() meanwhile.
class ELIXIR_PUBLIC Gathered {
 public:
  explicit Gathered(const std::vector<at::Tensor>& parameters);
  Gathered(Gathered&&) noexcept;
  ~Gathered();

 private:
  struct Pins;
  std::unique_ptr<Pins> pins_;
};

// Holds one step while it lives: step(), and what else waits for operators, waits for its end.
// Until then operators of any thread read the weights of that step. Without a scope, a pass that
// runs beside step() in another thread may read some chunks after one step and others after the
// next. step() in the scope's thread is an error. In a thread that the scope waits for, it never
// returns.
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

}  // namespace elixir
