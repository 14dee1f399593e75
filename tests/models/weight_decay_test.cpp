#include "models/weight_decay.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <torch/optim/adamw.h>

#include <memory>

#include "client/tensors/meta_init.h"
#include "tests/client/with_elixird.h"
#include "tests/models/built.h"
#include "tests/models/tiny_gpt2.h"
#include "tests/support/matchers.h"

namespace elixir {
namespace {

// The epsilon keeps gradients that are rounding alone, as a key's bias has them, from making steps.
constexpr double kLr = 1e-2, kDecay = 0.5, kEps = 1e-3;
constexpr int kSteps = 4;

TrainOptions decaying_all() {
  TrainOptions options;
  options.decay_all = true;
  return options;
}

TEST(WeightDecay, NormsAndBiasesHaveNone) {
  for (const char* name : {"gpt2-nano", "opt-nano", "llama-nano"}) {
    const auto config = value_or_throw(planner::transformer_config(name));
    const MetaInit without_memory;
    const auto model = built(config);
    const std::vector<ParamGroup> groups = decay_groups(*model, {});
    ASSERT_EQ(groups.size(), 1u) << name;
    EXPECT_EQ(groups[0].weight_decay, 0.0);
    for (const auto& item : model->named_parameters()) {
      // As transformers' Trainer has it: norms' weights and all biases.
      const bool norm = item.key().find("norm") != std::string::npos ||
                        item.key().find("ln_") != std::string::npos;
      const bool none = norm || item.key().ends_with(".bias");
      const bool grouped =
          std::any_of(groups[0].parameters.begin(), groups[0].parameters.end(),
                      [&](const at::Tensor& parameter) { return parameter.is_same(item.value()); });
      EXPECT_EQ(grouped, none) << name << ": " << item.key();
    }
    EXPECT_THAT(decay_groups(*model, decaying_all()), IsEmpty());
  }
}

class WeightDecayBesideTorch : public test::WithElixird {
 protected:
  static std::shared_ptr<Decoder> model() { return built(tiny_gpt2_config(), {.seed = 3}); }
  // Norms and biases that begin at 0 or 1 would hide a decay of 0.
  static void shift(Decoder& model) {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : model.parameters()) parameter.add_(0.25);
  }
  static at::Tensor loss(Decoder& model, int step) {
    const at::Tensor tokens = (at::arange(16, at::kLong) * (step + 3) % 50).view({1, 16});
    return model.loss(tokens, tokens);
  }

  static std::vector<at::Tensor> by_elixir(const TrainOptions& options) {
    const auto trained = model();
    shift(*trained);
    AdamW optimizer(*trained, {.lr = kLr, .eps = kEps, .weight_decay = kDecay}, {},
                    decay_groups(*trained, options));
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      loss(*trained, step).backward();
      optimizer.step();
    }
    optimizer.release();
    return trained->parameters();
  }
  static std::vector<at::Tensor> by_torch(bool all) {
    const auto trained = model();
    shift(*trained);
    std::vector<at::Tensor> decayed, others;
    for (const at::Tensor& parameter : trained->parameters()) {
      (all || parameter.dim() >= 2 ? decayed : others).push_back(parameter);
    }
    const auto options = torch::optim::AdamWOptions(kLr).eps(kEps).weight_decay(kDecay);
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(decayed);
    if (!all) {
      auto without = std::make_unique<torch::optim::AdamWOptions>(options);
      without->weight_decay(0);
      groups.emplace_back(others, std::move(without));
    }
    torch::optim::AdamW optimizer(groups, options);
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      loss(*trained, step).backward();
      optimizer.step();
    }
    return trained->parameters();
  }
  static bool close(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
    bool all = a.size() == b.size();
    for (size_t i = 0; all && i < a.size(); ++i) all = at::allclose(a[i], b[i], 1e-4, 1e-5);
    return all;
  }
};

TEST_F(WeightDecayBesideTorch, TwoGroupsAreTorchsTwoGroups) {
  EXPECT_TRUE(close(by_elixir({}), by_torch(/*all=*/false)));
  EXPECT_FALSE(close(by_elixir({}), by_torch(/*all=*/true))) << "the difference shows";
}

TEST_F(WeightDecayBesideTorch, DecayAllIsOneGroup) {
  EXPECT_TRUE(close(by_elixir(decaying_all()), by_torch(/*all=*/true)));
}

}  // namespace
}  // namespace elixir
