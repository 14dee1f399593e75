#pragma once

// Runs one program twice: with torch::optim, and with Elixir in its place. Each row of
// docs/torch_ways.md is a test made with it.

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/elixir.h"
#include "tests/client/with_elixird.h"
#include "tests/support/every_case.h"

namespace elixir::test {

struct Mode {
  const char* name;
  uint32_t ranks = 1;
  shm::Exchange exchange = shm::Exchange::kHost;
  ComputeType dtype = ComputeType::kFp32;
};

inline constexpr Mode kAlone{"Alone"}, kTwoRanks{"TwoRanks", 2},
    kTwoRanksCollective{"TwoRanksCollective", 2, shm::Exchange::kCollective},
    kBf16Alone{"Bf16", 1, shm::Exchange::kHost, ComputeType::kBf16},
    kBf16TwoRanks{"Bf16TwoRanks", 2, shm::Exchange::kHost, ComputeType::kBf16},
    kBf16TwoRanksCollective{"Bf16TwoRanksCollective", 2, shm::Exchange::kCollective,
                            ComputeType::kBf16};

// Tolerance in BF16, relative to a weight's L2 norm. It allows one step of the 16-bit type in some
// elements, where the rounding of masters or sums differs.
inline constexpr double kBf16Closeness = 4e-3;

// The calls that a program may make with either optimizer.
class Trainer {
 public:
  virtual ~Trainer() = default;
  virtual void zero_grad() = 0;
  virtual void step() = 0;
  virtual void set_lr(double lr) = 0;
  virtual void set_group(uint32_t group, const ParamGroup& changes) = 0;
  virtual void add_group(const ParamGroup& group) = 0;
  virtual torch::optim::Optimizer& torch_optimizer() = 0;
  virtual void set_parameter(const at::Tensor& parameter, const at::Tensor& values) = 0;
  // Afterwards the module is an ordinary one, in FP32.
  virtual void release() = 0;
  // Ends the optimizer and makes a new one of the same kind on the trained module.
  virtual void again() = 0;
  // A second trainer of the same kind and settings, on another module. It lives as long as this
  // one.
  virtual Trainer& another(torch::nn::Module& model) = 0;
  // Null in torch's run.
  virtual Optimizer* elixir() { return nullptr; }
  at::ScalarType dtype = at::kFloat;
  // The ranks whose data the trainer takes, each with a share of the loss. Elixir's trainer
  // takes its own rank's data, torch's run takes all ranks' data.
  std::vector<uint32_t> ranks = {0};
};

using Build = std::function<std::shared_ptr<torch::nn::Module>()>;
using Program = std::function<void(torch::nn::Module&, Trainer&)>;

template <typename Model>
std::shared_ptr<torch::nn::Module> made() {
  return std::make_shared<Model>();
}
std::shared_ptr<torch::nn::Module> small_net();
// small_net() with `change` made to it.
Build net_with(const std::function<void(torch::nn::Module&)>& change);

struct Settings {
  Build build = small_net;
  AdamWOptions hyper = {.lr = 1e-2, .weight_decay = 0.05};
  Options options = {};
  std::function<std::vector<ParamGroup>(torch::nn::Module&)> groups = {};
  bool of_tensors = false;         // the optimizer gets a list of tensors, not the module
  bool in_inference_mode = false;  // Elixir's optimizer is built in inference mode
  double tolerance = 1e-6;         // relative to each weight's L2 norm, in FP32
};

// The weights and buffers of both runs are equal within the tolerance, on every rank. All ranks
// take the same data, unless the program uses Trainer::ranks.
void expect_like_torch(const Mode& mode, const Settings& settings, const Program& program);

// Runs `program` through Elixir alone and expects an exception whose message has all `texts`.
void expect_error(const Mode& mode, const std::vector<std::string>& texts, const Settings& settings,
                  const Program& program);

// Runs `program` through Elixir alone. The program makes its own checks.
void run_elixir(const Mode& mode, const Settings& settings, const Program& program);

// A test suite that runs in every mode:
//   class TorchModules : public InEveryMode {};
//   IN_EVERY_MODE(TorchModules);
class InEveryMode : public WithElixird, public ::testing::WithParamInterface<Mode> {
 protected:
  const Mode& mode() const { return GetParam(); }
  bool fp32() const { return mode().dtype == ComputeType::kFp32; }
  bool collective() const { return mode().exchange == shm::Exchange::kCollective; }
  // The allowed distance from torch's weights, relative to their norms.
  double closeness() const { return fp32() ? 1e-6 : kBf16Closeness; }

  // These call the functions above in this mode.
  void like_torch(const Settings& settings, const Program& program) const {
    expect_like_torch(mode(), settings, program);
  }
  void like_torch(const Program& program) const { like_torch({}, program); }
  // For errors that each rank makes by itself, without the exchange.
  void refused(const std::vector<std::string>& texts, const Settings& settings,
               const Program& program) const {
    if (collective() && !every_case()) GTEST_SKIP() << "as with elixird's exchange";
    expect_error(mode(), texts, settings, program);
  }
  void refused(const std::vector<std::string>& texts, const Program& program) const {
    refused(texts, {}, program);
  }
  void elixir_alone(const Settings& settings, const Program& program) const {
    run_elixir(mode(), settings, program);
  }
  void elixir_alone(const Program& program) const { elixir_alone({}, program); }
  Options options(const LaunchEnvironment& environment) const {
    Options result;
    result.dtype = mode().dtype;
    result.layout.exchange = mode().exchange;
    result.environment = environment;
    return result;
  }
};
#define IN_EVERY_MODE(Suite)                                                                      \
  INSTANTIATE_TEST_SUITE_P(Modes, Suite,                                                          \
                           ::testing::Values(kAlone, kTwoRanks, kTwoRanksCollective, kBf16Alone), \
                           [](const auto& info) { return std::string(info.param.name); })

// Modes for suites that also run in BF16 on two ranks.
inline std::vector<Mode> bf16_on_two_ranks() {
  std::vector<Mode> modes = {kBf16TwoRanks};
  if (every_case()) modes.push_back(kBf16TwoRanksCollective);
  return modes;
}
#define IN_BF16_ON_TWO_RANKS(Suite)                                                         \
  INSTANTIATE_TEST_SUITE_P(Bf16OnTwoRanks, Suite, ::testing::ValuesIn(bf16_on_two_ranks()), \
                           [](const auto& info) { return std::string(info.param.name); })

// The model's output for inputs made from `number`, in the types that the model takes, and a loss
// of it.
at::Tensor net_output(torch::nn::Module& net, int64_t number, const Trainer& trainer);
at::Tensor net_loss(torch::nn::Module& net, int64_t number, const Trainer& trainer);
// A loss of the first layer alone.
at::Tensor loss_of_first_layer(torch::nn::Module& net, int64_t number, const Trainer& trainer);
// Equal numbers give equal values. torch's generators are not used, because ranks are threads.
at::Tensor wave(at::IntArrayRef sizes, int64_t number, at::ScalarType dtype = at::kFloat);
// One step: zero_grad, loss, backward, step.
void plain_step(torch::nn::Module& net, Trainer& trainer, int64_t number);

void plain_steps(int64_t first, int64_t count, torch::nn::Module& net, Trainer& trainer);
inline const Program kThreeSteps = [](torch::nn::Module& net, Trainer& trainer) {
  plain_steps(0, 3, net, trainer);
};
// Each step is zero_grad, `body` with the step's number from 0 on, and step.
Program steps(int64_t count,
              const std::function<void(torch::nn::Module&, Trainer&, int64_t)>& body);

at::Tensor parameter(torch::nn::Module& net, const std::string& name);

// saved() returns the file that torch::save makes of a module. load() reads such a file with
// torch::load.
std::string saved(torch::nn::Module& module);
void load(torch::nn::Module& module, const std::string& bytes);

// L2 norms, in FP64.
double norm_of(const at::Tensor& values);
double distance(const at::Tensor& a, const at::Tensor& b);

// How often `words` occur in the text.
uint32_t count_of(const std::string& words, const std::string& text);

// The message of the exception that `call` throws; empty: it throws nothing.
std::string message_of(const std::function<void()>& call);

}  // namespace elixir::test
