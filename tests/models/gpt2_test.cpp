#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include <cmath>

#include "base/throw_error.h"
#include "models/decoder.h"
#include "models/plain_train.h"
#include "models/train_inputs.h"
#include "tests/models/built.h"
#include "tests/models/tiny_gpt2.h"
#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"

namespace elixir {
namespace {

using planner::TransformerConfig;

const TransformerConfig kTiny = tiny_gpt2_config();

TransformerConfig nano() { return *planner::transformer_config("gpt2-nano"); }

at::Tensor random_tokens(const TransformerConfig& config, int64_t batch, int64_t seq) {
  return at::randint(config.vocabulary, {batch, seq}, at::kLong);
}

// Equal in every bit.
bool same_weights(Decoder& a, Decoder& b) {
  const auto left = a.parameters(), right = b.parameters();
  for (size_t i = 0; i < left.size(); ++i) {
    if (!left[i].equal(right[i])) return false;
  }
  return left.size() == right.size();
}

TEST(Gpt2, InitialWeightsDependOnTheSeedAlone) {
  at::manual_seed(1);
  const std::shared_ptr<Decoder> model = built(kTiny, {.seed = 7});
  at::manual_seed(2);
  at::randn({5});
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const std::shared_ptr<Decoder> again = built(kTiny, {.seed = 7}),
                                 other = built(kTiny, {.seed = 8});
  at::set_num_threads(threads);
  EXPECT_TRUE(same_weights(*model, *again));
  EXPECT_FALSE(same_weights(*model, *other));
}

TEST(Gpt2, InitialWeightsAreThoseOfGpt2) {
  const std::shared_ptr<Decoder> model = built(nano());
  for (const auto& parameter : model->named_parameters()) {
    const at::Tensor& weight = parameter.value();
    const std::string& name = parameter.key();
    if (name.ends_with("bias")) {
      EXPECT_TRUE(weight.equal(at::zeros_like(weight))) << name;
    } else if (weight.dim() == 1) {
      EXPECT_TRUE(weight.equal(at::ones_like(weight))) << name;
    } else {
      const double deviation = name.ends_with("c_proj.weight") ? 0.02 / std::sqrt(8.0) : 0.02;
      EXPECT_NEAR(weight.std().item<double>(), deviation, 0.02 * deviation) << name;
      EXPECT_NEAR(weight.mean().item<double>(), 0, 0.02 * deviation) << name;
    }
  }
  // Each weight has draws of its own.
  const auto named = model->named_parameters();
  EXPECT_FALSE(named["transformer.h.0.attn.c_attn.weight"].equal(
      named["transformer.h.1.attn.c_attn.weight"]));
}

// Written out with matmul and softmax on the parameters by name: agrees with the module only if
// layouts, epsilons, GELU, causal mask, scale and the tied head are those of GPT-2.
at::Tensor reference_logits(Decoder* model, const at::Tensor& tokens) {
  const TransformerConfig& config = model->config();
  const auto all = model->named_parameters();
  const auto norm = [&](const at::Tensor& x, const std::string& name) {
    const at::Tensor centred = x - x.mean(-1, true);
    const at::Tensor variance = (centred * centred).mean(-1, true);
    return centred / (variance + 1e-5).sqrt() * all[name + ".weight"] + all[name + ".bias"];
  };
  const auto project = [&](const at::Tensor& x, const std::string& name) {
    return x.matmul(all[name + ".weight"]) + all[name + ".bias"];
  };
  const int64_t batch = tokens.size(0), seq = tokens.size(1), width = config.width;
  const auto heads = [&](const at::Tensor& x) {
    return x.view({batch, seq, config.heads, config.head_numel()}).transpose(1, 2);
  };
  const at::Tensor wte = all["transformer.wte.weight"];
  at::Tensor x = wte.index({tokens}) + all["transformer.wpe.weight"].narrow(0, 0, seq);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string block = "transformer.h." + std::to_string(layer) + ".";
    const auto qkv = project(norm(x, block + "ln_1"), block + "attn.c_attn").chunk(3, -1);
    at::Tensor scores = heads(qkv[0].contiguous()).matmul(heads(qkv[1].contiguous()).mT()) /
                        std::sqrt(static_cast<double>(config.head_numel()));
    scores = scores.masked_fill(at::ones({seq, seq}, at::kBool).triu(1), -INFINITY);
    const at::Tensor attended = scores.softmax(-1).matmul(heads(qkv[2].contiguous()));
    x = x + project(attended.transpose(1, 2).reshape({batch, seq, width}), block + "attn.c_proj");
    const at::Tensor h = project(norm(x, block + "ln_2"), block + "mlp.c_fc");
    const at::Tensor gelu =
        0.5 * h * (1 + (std::sqrt(2 / M_PI) * (h + 0.044715 * h * h * h)).tanh());
    x = x + project(gelu, block + "mlp.c_proj");
  }
  return norm(x, "transformer.ln_f").matmul(wte.t());
}

TEST(Gpt2, ComputesWhatTheFormulasSay) {
  // In double, where even the two forms of GELU, 3e-4 apart, are told from each other.
  const std::shared_ptr<Decoder> model = built(kTiny, {.dtype = at::kDouble});
  {
    // Large weights and biases, so that no term is lost in the tolerance.
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : model->parameters()) parameter.normal_(0.1, 0.2);
  }
  const at::Tensor tokens = random_tokens(kTiny, 3, 16);
  const at::Tensor logits = model->forward(tokens),
                   expected = reference_logits(model.get(), tokens);
  EXPECT_LT((logits - expected).abs().max().item<double>(),
            1e-10 * expected.abs().max().item<double>());
}

TEST(Gpt2, LossIsFp32InEveryDtype) {
  const at::Tensor tokens = random_tokens(kTiny, 2, 17);
  const at::Tensor inputs = tokens.narrow(1, 0, 16), targets = tokens.narrow(1, 1, 16);
  const double expected = built(kTiny)->loss(inputs, targets).item<double>();
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const std::shared_ptr<Decoder> model = built(kTiny, {.dtype = dtype});
    EXPECT_EQ(model->parameters()[0].scalar_type(), dtype);
    const at::Tensor loss = model->loss(inputs, targets);
    EXPECT_EQ(loss.scalar_type(), at::kFloat);
    EXPECT_NEAR(loss.item<double>(), expected, 0.02);
    loss.backward();
    EXPECT_EQ(model->parameters()[0].grad().scalar_type(), dtype);
  }
}

TEST(Gpt2, DropoutActsOnlyWhileTraining) {
  const std::shared_ptr<Decoder> model = built(kTiny, {.dropout = 0.5});
  const at::Tensor tokens = random_tokens(kTiny, 2, 16);
  EXPECT_FALSE(model->forward(tokens).equal(model->forward(tokens)));
  model->eval();
  EXPECT_TRUE(model->forward(tokens).equal(model->forward(tokens)));
}

class PlainTrainTest : public ::testing::Test {
 protected:
  PlainTrainTest() {
    options_.config = tiny_gpt2_config({.vocabulary = 256});
    options_.model.seq = 16;
    options_.model.batch = 8;
    options_.steps = 60;
    options_.adamw.lr = 0.01;
    options_.warmup_steps = 5;
    std::string text;
    while (text.size() < 4000) text += "the quick brown fox jumps over the lazy dog. ";
    options_.data = {folder_.write("fox.txt", text)};
  }

  std::vector<double> losses(ComputeType dtype) {
    options_.run.dtype = dtype;
    options_.run.loss_scale = dtype == ComputeType::kFp16 ? 1024 : 1;
    std::vector<double> all;
    const TokenData data = must(open_data(options_));
    const Status status = plain_train(*model(), data, options_, [&](const StepReport& report) {
      EXPECT_EQ(report.stats.step, all.size() + 1);
      all.push_back(report.outcome.mean_loss);
      return Status();
    });
    EXPECT_TRUE(status.ok()) << status.message();
    return all;
  }

  std::shared_ptr<Decoder> model() const {
    return value_or_throw(build_decoder(options_.config, model_options(options_)));
  }

  TemporaryFolder folder_;
  TrainOptions options_;
};

TEST_F(PlainTrainTest, LearnsTheTextInEveryDtype) {
  const std::vector<double> fp32 = losses(ComputeType::kFp32);
  ASSERT_EQ(fp32.size(), 60u);
  EXPECT_NEAR(fp32.front(), std::log(256.0), 0.15);
  EXPECT_LT(fp32.back(), 1.5);
  for (const ComputeType dtype : {ComputeType::kBf16, ComputeType::kFp16}) {
    const std::vector<double> half = losses(dtype);
    ASSERT_EQ(half.size(), 60u);
    EXPECT_NEAR(half.front(), fp32.front(), 0.02);
    EXPECT_NEAR(half.back(), fp32.back(), 0.2);
  }
}

TEST_F(PlainTrainTest, IsDeterministic) {
  options_.steps = 10;
  EXPECT_EQ(losses(ComputeType::kFp32), losses(ComputeType::kFp32));
}

TEST_F(PlainTrainTest, AccumulatesWhatOneBatchHolds) {
  options_.steps = 5;
  const std::vector<double> whole = losses(ComputeType::kFp32);
  options_.model.batch = 2;
  options_.run.accumulate = 4;
  const std::vector<double> split = losses(ComputeType::kFp32);
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(split[i], whole[i], 1e-4);
  options_.run.accumulate = 1;  // the control: fewer rows are another training
  EXPECT_GT(std::abs(losses(ComputeType::kFp32).back() - whole.back()), 1e-3);
}

TEST_F(PlainTrainTest, ClipsByTheNormThatItReports) {
  options_.steps = 3;
  std::vector<double> norms;
  const auto train = [&](std::optional<double> clip_norm) {
    options_.run.clip_norm = clip_norm;
    norms.clear();
    double last_loss = 0;
    EXPECT_TRUE(
        plain_train(*model(), *open_data(options_), options_, [&](const StepReport& report) {
          norms.push_back(report.outcome.grad_norm);
          last_loss = report.outcome.mean_loss;
          return Status();
        }).ok());
    return last_loss;
  };
  const double plain = train(std::nullopt);
  EXPECT_TRUE(std::isnan(norms.front()));
  EXPECT_EQ(train(1e6), plain);  // clips nothing
  const double norm = norms[1];
  EXPECT_GT(norm, 0);
  // Adam hardly minds the length of a gradient; that of one step among others it does.
  EXPECT_NE(train(norm / 100), plain);
  EXPECT_GT(norms.front(), norm / 100);  // before clipping
}

TEST_F(PlainTrainTest, EndsWithTheStatusOfItsCaller) {
  const TokenData data = value_or_throw(open_data(options_));
  int64_t steps = 0;
  const Status status = plain_train(*model(), data, options_, [&](const StepReport&) {
    return ++steps == 3 ? error(Code::kTimedOut, "enough") : Status();
  });
  EXPECT_EQ(status.code(), Code::kTimedOut);
  EXPECT_EQ(steps, 3);
}

}  // namespace
}  // namespace elixir
