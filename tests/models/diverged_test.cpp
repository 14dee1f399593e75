#include "models/diverged.h"

#include <ATen/Functions.h>
#include <torch/nn/modules/linear.h>

#include <limits>

#include "tests/support/matchers.h"

namespace elixir {
namespace {

torch::nn::Linear linear(at::ScalarType type) {
  torch::nn::Linear model(3, 4);
  model->to(type);
  const at::NoGradGuard no_grad;
  model->weight.fill_(-1.5);
  model->bias.fill_(1);
  return model;
}

TEST(LookAtWeights, FindsTheLargestValueOrTheFirstParameterThatIsNotFinite) {
  const at::NoGradGuard no_grad;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    torch::nn::Linear model = linear(type);
    model->register_parameter("nothing", at::empty({0}));
    const WeightsLook finite = look_at_weights(*model);
    EXPECT_EQ(finite.first_not_finite, "");
    EXPECT_EQ(finite.largest, 1.5);
    model->bias[3] = std::numeric_limits<double>::quiet_NaN();
    EXPECT_EQ(look_at_weights(*model).first_not_finite, "'bias', 1 of 4 values");
    model->weight[0][0] = -std::numeric_limits<double>::infinity();
    model->weight[3][2] = std::numeric_limits<double>::infinity();
    EXPECT_EQ(look_at_weights(*model).first_not_finite, "'weight', 2 of 12 values");
  }
}

TEST(DivergedError, SaysWhatTheWeightsHoldAndWhereToContinue) {
  const Status nan = diverged_error("the loss was nan in step 7", {"'h.0', 3 of 4 values"},
                                    "c/step-000000004", {});
  EXPECT_EQ(nan.code(), Code::kDiverged);
  EXPECT_EQ(nan.message(),
            "diverged: the loss was nan in step 7; the first parameter that is not finite is "
            "'h.0', 3 of 4 values; continue from c/step-000000004: --resume c/step-000000004, with "
            "another --checkpoints and a lower --lr or --clip-norm 1");
  EXPECT_EQ(diverged_error("why", {"", 1.25e30}, "", {}).message(),
            "diverged: why; all parameters are finite, the largest value is 1.25e+30; begin again "
            "with a lower --lr or --clip-norm 1");
}

// A remedy that the run has already, or could not have, is none.
TEST(DivergedError, ItsRemediesFitTheRun) {
  TrainOptions plain, clipped, constant, dynamic, immediate;
  clipped.run.clip_norm = 0.5;
  constant.run.dtype = dynamic.run.dtype = immediate.run.dtype = ComputeType::kFp16;
  constant.run.loss_scale = immediate.run.loss_scale = 1e8;
  dynamic.run.dynamic_loss_scale = DynamicLossScale{};
  immediate.run.update = UpdateMode::kImmediate;
  const std::pair<const TrainOptions&, std::string> cases[] = {
      {plain, "a lower --lr or --clip-norm 1"},
      {clipped, "a lower --lr or a --clip-norm below 0.5"},
      {constant, "--loss-scale dynamic, a lower --lr, --clip-norm 1 or --dtype bf16"},
      {dynamic, "a lower --lr, --clip-norm 1 or --dtype bf16"},
      {immediate, "a --loss-scale below 100000000, a lower --lr or --dtype bf16"}};
  for (const auto& [options, remedies] : cases) {
    EXPECT_THAT(diverged_error("why", {}, "", options).message(),
                EndsWith("begin again with " + remedies));
  }
}

}  // namespace
}  // namespace elixir
