#include "models/generate.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <map>

#include "tests/models/built.h"
#include "tests/models/tiny_gpt2.h"
#include "tests/support/matchers.h"

namespace elixir {
namespace {

at::Generator generator_of(uint64_t seed) { return at::make_generator<at::CPUGeneratorImpl>(seed); }

// Logits of four tokens with probabilities 0.1, 0.2, 0.3 and 0.4.
at::Tensor four() {
  at::Tensor logits = at::empty({4});
  for (int i = 0; i < 4; ++i) logits[i] = std::log(0.1 * (i + 1));
  return logits;
}

std::map<int64_t, int> draws(const GenerateOptions& options, int count) {
  at::Generator generator = generator_of(1);
  std::map<int64_t, int> counts;
  for (int i = 0; i < count; ++i) ++counts[choose_token(four(), options, generator)];
  return counts;
}

TEST(ChooseToken, AtTemperatureZeroIsTheLikeliest) {
  EXPECT_EQ(draws({.temperature = 0}, 20), (std::map<int64_t, int>{{3, 20}}));
}

TEST(ChooseToken, DrawsAsProbabilitiesAndTheTemperatureSay) {
  std::map<int64_t, int> counts = draws({.temperature = 1}, 10'000);
  for (int64_t token = 0; token < 4; ++token) {
    EXPECT_NEAR(counts[token], 1000 * (token + 1), 250) << token;
  }
  // Probabilities squared, and their sum is 0.3.
  counts = draws({.temperature = 0.5}, 10'000);
  EXPECT_NEAR(counts[3], 10'000 * 0.16 / 0.3, 250);
}

TEST(ChooseToken, TopKLeavesTheOthersOut) {
  const std::map<int64_t, int> counts = draws({.temperature = 1, .top_k = 2}, 1000);
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_EQ(counts.count(2) + counts.count(3), 2u);
  EXPECT_EQ(draws({.temperature = 1, .top_k = 9}, 1000).size(), 4u);
}

std::vector<int64_t> continued(Decoder& model, std::vector<int64_t> tokens,
                               const GenerateOptions& options) {
  return must(generate(model, std::move(tokens), options));
}

TEST(Generate, GreedyTakesTheLikeliestOfEachPass) {
  const std::shared_ptr<Decoder> model = built(tiny_gpt2_config());
  const std::vector<int64_t> prompt = {1, 2, 3};
  const std::vector<int64_t> tokens = continued(*model, prompt, {.length = 5, .temperature = 0});
  ASSERT_EQ(tokens.size(), 8u);
  model->eval();
  const at::NoGradGuard no_grad;
  for (size_t i = 3; i < tokens.size(); ++i) {
    at::Tensor before = at::empty({1, static_cast<int64_t>(i)}, at::kLong);
    for (size_t k = 0; k < i; ++k) before[0][static_cast<int64_t>(k)] = tokens[k];
    const at::Tensor logits = model->forward(before)[0][static_cast<int64_t>(i) - 1];
    EXPECT_EQ(tokens[i], logits.argmax().item<int64_t>()) << i;
  }
}

TEST(Generate, TheSeedAloneChooses) {
  const std::shared_ptr<Decoder> model = built(tiny_gpt2_config());
  GenerateOptions options = {.length = 30, .temperature = 1, .seed = 7};
  const auto first = continued(*model, {1}, options);
  at::rand({3});
  EXPECT_EQ(continued(*model, {1}, options), first);
  options.seed = 8;
  EXPECT_NE(continued(*model, {1}, options), first);
}

TEST(Generate, LeavesModeAndRandomNumbersAsTheyAre) {
  const std::shared_ptr<Decoder> model = built(tiny_gpt2_config(), {.dropout = 0.5});
  for (const bool training : {true, false}) {
    model->train(training);
    at::manual_seed(1);
    const at::Tensor expected = at::rand({4});
    at::manual_seed(1);
    const auto tokens = continued(*model, {1}, {.length = 3, .temperature = 1});
    EXPECT_TRUE(at::rand({4}).equal(expected));
    EXPECT_EQ(model->is_training(), training);
    EXPECT_EQ(tokens, continued(*model, {1}, {.length = 3, .temperature = 1})) << "with dropout";
    for (const at::Tensor& parameter : model->parameters()) {
      EXPECT_FALSE(parameter.grad().defined());
    }
  }
}

TEST(Generate, SeesTheLastTokensThatTheContextHolds) {
  planner::TransformerConfig config = tiny_gpt2_config();
  const GenerateOptions options = {.length = 40, .temperature = 0};
  const std::vector<int64_t> tokens = continued(*built(config), {1, 2}, options);
  EXPECT_EQ(tokens.size(), 42u);  // a context of 16
  config.context = 1;
  // Each token follows from the one before it alone.
  std::map<int64_t, int64_t> next;
  const std::vector<int64_t> alone = continued(*built(config), {1, 2}, options);
  for (size_t i = 2; i < alone.size(); ++i) {
    const auto [known, is_new] = next.emplace(alone[i - 1], alone[i]);
    EXPECT_EQ(known->second, alone[i]);
  }
}

TEST(Generate, EndsWhenItIsTold) {
  int told = 0;
  const auto tokens = continued(*built(tiny_gpt2_config()), {1},
                                {.length = 40, .on_token = [&](int64_t) { return ++told < 3; }});
  EXPECT_EQ(tokens.size(), 4u);
}

TEST(Generate, OutputsThatAreNoNumbersAreAnError) {
  const std::shared_ptr<Decoder> model = built(tiny_gpt2_config());
  for (const double value : {std::nan(""), HUGE_VAL}) {
    {
      const at::NoGradGuard no_grad;
      for (const at::Tensor& parameter : model->parameters()) parameter.fill_(value);
    }
    for (const double temperature : {0.0, 1.0}) {
      expect_refused(generate(*model, {1}, {.length = 3, .temperature = temperature}).status(),
                     Code::kBadInput, {"not numbers"});
    }
  }
}

}  // namespace
}  // namespace elixir
