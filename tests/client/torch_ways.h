#pragma once

// One program run twice: with torch::optim, and with Elixir in its place. The rows of
// docs/torch_ways.md are tests made of it.

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

// Of a weight's L2 norm, in BF16: a step of the 16-bit type in some elements, where the rounding of
// masters or sums differs.
inline constexpr double kBf16Closeness = 4e-3;

// What a program may do with either optimizer.
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
  // The module is an ordinary one afterwards, of FP32.
  virtual void release() = 0;
  // The optimizer ends; a new one of the same kind on what it has trained.
  virtual void again() = 0;
  // A second one of the same kind and settings, on another module. It lives as long as this.
  virtual Trainer& another(torch::nn::Module& model) = 0;
  // Null in torch's run.
  virtual Optimizer* elixir() { return nullptr; }
  at::ScalarType dtype = at::kFloat;
  // Whose data it takes, with a share of the loss each: Elixir's its own, torch's run all.
  std::vector<uint32_t> ranks = {0};
};

using Build = std::function<std::shared_ptr<torch::nn::Module>()>;
using Program = std::function<void(torch::nn::Module&, Trainer&)>;

template <typename Model>
std::shared_ptr<torch::nn::Module> made() {
  return std::make_shared<Model>();
}
std::shared_ptr<torch::nn::Module> small_net();
// It, with `change` made to it.
Build net_with(const std::function<void(torch::nn::Module&)>& change);

struct Settings {
  Build build = small_net;
  AdamWOptions hyper = {.lr = 1e-2, .weight_decay = 0.05};
  Options options = {};
  std::function<std::vector<ParamGroup>(torch::nn::Module&)> groups = {};
  bool of_tensors = false;         // built on a list of tensors, not on the module
  bool in_inference_mode = false;  // Elixir's is built there
  double tolerance = 1e-6;         // of each weight's L2 norm, FP32
};

// The weights and buffers of both runs are equal within the tolerance, on every rank (which all
// take the same data).
void expect_like_torch(const Mode& mode, const Settings& settings, const Program& program);

// `program` runs through Elixir alone. Every text is in what it throws.
void expect_error(const Mode& mode, const std::vector<std::string>& texts, const Settings& settings,
                  const Program& program);

// `program` runs through Elixir alone, and checks what it has to.
void run_elixir(const Mode& mode, const Settings& settings, const Program& program);

// Tests of which each is run in every mode:
//   class TorchModules : public InEveryMode {};
//   IN_EVERY_MODE(TorchModules);
class InEveryMode : public WithElixird, public ::testing::WithParamInterface<Mode> {
 protected:
  const Mode& mode() const { return GetParam(); }
  bool fp32() const { return mode().dtype == ComputeType::kFp32; }
  bool collective() const { return mode().exchange == shm::Exchange::kCollective; }
  // How far weights may be from torch's, in their norms.
  double closeness() const { return fp32() ? 1e-6 : kBf16Closeness; }

  // The functions above, in this mode.
  void like_torch(const Settings& settings, const Program& program) const {
    expect_like_torch(mode(), settings, program);
  }
  void like_torch(const Program& program) const { like_torch({}, program); }
  // For errors that each rank makes by itself.
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

// In BF16 on two ranks, too.
inline std::vector<Mode> bf16_on_two_ranks() {
  std::vector<Mode> modes = {kBf16TwoRanks};
  if (every_case()) modes.push_back(kBf16TwoRanksCollective);
  return modes;
}
#define IN_BF16_ON_TWO_RANKS(Suite)                                                         \
  INSTANTIATE_TEST_SUITE_P(Bf16OnTwoRanks, Suite, ::testing::ValuesIn(bf16_on_two_ranks()), \
                           [](const auto& info) { return std::string(info.param.name); })

// A loss of the model's output for inputs made from `number`, of the types the model takes.
at::Tensor net_output(torch::nn::Module& net, int64_t number, const Trainer& trainer);
at::Tensor net_loss(torch::nn::Module& net, int64_t number, const Trainer& trainer);
// The first layer alone.
at::Tensor loss_of_first_layer(torch::nn::Module& net, int64_t number, const Trainer& trainer);
// The same values for the same number, without torch's generators: ranks are threads.
at::Tensor wave(at::IntArrayRef sizes, int64_t number, at::ScalarType dtype = at::kFloat);
// zero_grad, loss, backward, step.
void plain_step(torch::nn::Module& net, Trainer& trainer, int64_t number);

void plain_steps(int64_t first, int64_t count, torch::nn::Module& net, Trainer& trainer);
inline const Program kThreeSteps = [](torch::nn::Module& net, Trainer& trainer) {
  plain_steps(0, 3, net, trainer);
};
// zero_grad, `body` with the step's number from 0 on, step.
Program steps(int64_t count,
              const std::function<void(torch::nn::Module&, Trainer&, int64_t)>& body);

at::Tensor parameter(torch::nn::Module& net, const std::string& name);

// The file that torch::save makes of it, and what torch::load reads of one.
std::string saved(torch::nn::Module& module);
void load(torch::nn::Module& module, const std::string& bytes);

// L2 norms, in FP64.
double norm_of(const at::Tensor& values);
double distance(const at::Tensor& a, const at::Tensor& b);

// How often the text holds the words.
uint32_t count_of(const std::string& words, const std::string& text);

// What `call` throws; empty: nothing.
std::string message_of(const std::function<void()>& call);

}  // namespace elixir::test
