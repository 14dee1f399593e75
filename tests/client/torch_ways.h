#pragma once

// One program run twice: with torch::optim, and with Elixir in its place. The rows of
// docs/training.md "Torch's ways, one by one" are tests made of it.

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

// Tests of which each is run in every mode:
//   class TorchModules : public InEveryMode {};
//   IN_EVERY_MODE(TorchModules);
class InEveryMode : public WithElixird, public ::testing::WithParamInterface<Mode> {
 protected:
  const Mode& mode() const { return GetParam(); }
  bool fp32() const { return mode().dtype == ComputeType::kFp32; }
  // How far weights may be from torch's, in their norms.
  double closeness() const { return fp32() ? 1e-6 : kBf16Closeness; }
};
#define IN_EVERY_MODE(Suite)                                                                      \
  INSTANTIATE_TEST_SUITE_P(Modes, Suite,                                                          \
                           ::testing::Values(kAlone, kTwoRanks, kTwoRanksCollective, kBf16Alone), \
                           [](const auto& info) { return std::string(info.param.name); })

// In BF16 on two ranks, too.
#define IN_BF16_ON_TWO_RANKS(Suite)                                                   \
  INSTANTIATE_TEST_SUITE_P(Bf16OnTwoRanks, Suite,                                     \
                           ::testing::Values(kBf16TwoRanks, kBf16TwoRanksCollective), \
                           [](const auto& info) { return std::string(info.param.name); })

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

struct Settings {
  AdamWOptions hyper = {.lr = 1e-2, .weight_decay = 0.05};
  Options options = {};
  std::function<std::vector<ParamGroup>(torch::nn::Module&)> groups = {};
  bool of_tensors = false;         // built on a list of tensors, not on the module
  bool in_inference_mode = false;  // Elixir's is built there
  double tolerance = 1e-6;         // of each weight's L2 norm, FP32
};

// The weights and buffers of both runs are equal within the tolerance, on every rank (which all
// take the same data).
void expect_like_torch(const Mode& mode, const Build& build, const Program& program,
                       const Settings& settings = {});

// `program` runs through Elixir alone. Every text is in what it throws.
void expect_error(const Mode& mode, const Build& build, const Program& program,
                  const std::vector<std::string>& texts, const Settings& settings = {});

// `program` runs through Elixir alone, and checks what it has to.
void run_elixir(const Mode& mode, const Build& build, const Program& program,
                const Settings& settings = {});

// A loss of the model's output for inputs made from `number`, of the types the model takes.
struct Net;
std::shared_ptr<torch::nn::Module> small_net();
at::Tensor net_output(torch::nn::Module& net, int64_t number, const Trainer& trainer);
at::Tensor net_loss(torch::nn::Module& net, int64_t number, const Trainer& trainer);
// The same values for the same number, without torch's generators: ranks are threads.
at::Tensor wave(at::IntArrayRef sizes, int64_t number, at::ScalarType dtype = at::kFloat);
// zero_grad, loss, backward, step.
void plain_step(torch::nn::Module& net, Trainer& trainer, int64_t number);

void plain_steps(int64_t first, int64_t count, torch::nn::Module& net, Trainer& trainer);
inline const Program kThreeSteps = [](torch::nn::Module& net, Trainer& trainer) {
  plain_steps(0, 3, net, trainer);
};

at::Tensor parameter(torch::nn::Module& net, const std::string& name);

// L2 norms, in FP64.
double norm_of(const at::Tensor& values);
double distance(const at::Tensor& a, const at::Tensor& b);

// How often the text holds the words.
uint32_t count_of(const std::string& words, const std::string& text);

// What `call` throws; empty: nothing.
std::string message_of(const std::function<void()>& call);

}  // namespace elixir::test
