
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "models/decoder.h"
#include "tests/models/built.h"
#include "tests/models/named_shapes.h"

namespace elixir {
namespace {

planner::TransformerConfig tiny_opt(bool tied) {
  return {.name = "tiny",
          .family = planner::Family::kOpt,
          .vocabulary = 50,
          .context = 16,
          .width = 24,
          .layers = 2,
          .heads = 3,
          .kv_heads = 3,
          .mlp_width = 96,
          .tied = tied};
}

TEST(Opt, NamesAndShapesAreHuggingFaces) {
  for (const bool tied : {true, false}) expect_named_shapes(*built(tiny_opt(tied)), tiny_opt(tied));
}

TEST(Opt, LearnsFromAllParametersAndSeesNoLaterToken) {
  const std::shared_ptr<Decoder> model = built(tiny_opt(true), {.checkpoint_activations = true});
  const at::Tensor tokens = at::randint(50, {2, 16}, at::kLong);
  const at::Tensor loss = model->loss(tokens, tokens);
  EXPECT_NEAR(loss.item<double>(), std::log(50.0), 0.3);
  loss.backward();
  expect_gradients(*model);
  expect_causal(tokens, [&](const at::Tensor& x) { return model->forward(x); });
  EXPECT_THROW(model->forward(at::randint(50, {1, 17}, at::kLong)), c10::Error);
}

TEST(BuildDecoder, RefusesSizesThatAFamilyCannotHave) {
  planner::TransformerConfig config = tiny_opt(true);
  config.heads = 5;
  EXPECT_EQ(build_decoder(config, {}).status().code(), Code::kBadInput);
  config = tiny_opt(true);
  config.family = planner::Family::kGpt2;
  EXPECT_TRUE(build_decoder(config, {}).ok());
  config.tied = false;
  EXPECT_THAT(build_decoder(config, {}).status().message(),
              ::testing::HasSubstr("output projection of its own"));
}

}  // namespace
}  // namespace elixir
