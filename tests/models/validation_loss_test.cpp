#include "models/validation_loss.h"

#include <ATen/Functions.h>

#include "models/train_inputs.h"
#include "tests/models/built.h"
#include "tests/models/tiny_gpt2.h"
#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"

namespace elixir {
namespace {

constexpr int64_t kSeq = 8, kVocabulary = 50;

class ValidationLossTest : public ::testing::Test {
 protected:
  // `masked`: the labels of these sequences are -100.
  TokenData data(int64_t sequences, const std::vector<int64_t>& masked = {}) {
    std::vector<uint16_t> tokens(static_cast<size_t>(sequences * kSeq + 1));
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<uint16_t>((i * i + 3 * i) % kVocabulary);
    }
    TokenDataOptions options = {.files = {folder_.write_tokens("tokens.bin", tokens)},
                                .vocabulary = kVocabulary,
                                .bare = TokenType::kUint16,
                                .seq = kSeq};
    if (masked.empty()) return must(TokenData::open(options));
    std::vector<int32_t> labels(tokens.begin(), tokens.end());
    for (const int64_t sequence : masked) {
      std::fill_n(labels.begin() + sequence * kSeq + 1, kSeq, int32_t{-100});
    }
    options.labels = {
        folder_.write("labels.bin", std::string(reinterpret_cast<const char*>(labels.data()),
                                                labels.size() * sizeof(int32_t)))};
    // Bare files have one type: the tokens as 32 bits, too.
    const std::vector<int32_t> wide(tokens.begin(), tokens.end());
    options.files = {folder_.write(
        "wide.bin",
        std::string(reinterpret_cast<const char*>(wide.data()), wide.size() * sizeof(int32_t)))};
    options.bare = TokenType::kInt32;
    return must(TokenData::open(options));
  }

  // The loss of one sequence, by the model's own function.
  double alone(const TokenData& data, int64_t index) {
    at::Tensor inputs = at::empty({1, kSeq}, at::kLong), targets = at::empty_like(inputs);
    const auto span = [](at::Tensor& tensor) {
      return std::span(tensor.mutable_data_ptr<int64_t>(), kSeq);
    };
    EXPECT_TRUE(data.sequence(index, span(inputs), span(targets)).ok());
    model_->eval();
    const double loss = model_->loss(inputs, targets).item<double>();
    model_->train();
    return loss;
  }

  TemporaryFolder folder_;
  std::shared_ptr<Decoder> model_ = built(tiny_gpt2_config(), {.seed = 3, .dropout = 0.5});
};

TEST_F(ValidationLossTest, IsTheMeanOfAllSequencesForAnyBatch) {
  const TokenData five = data(5);
  double sum = 0;
  for (int64_t index = 0; index < 5; ++index) sum += alone(five, index);
  for (const int64_t batch : {1, 2, 5, 8}) {
    EXPECT_NEAR(must(validation_loss(*model_, five, {.batch = batch})), sum / 5, 1e-5) << batch;
  }
}

TEST_F(ValidationLossTest, FewerSequencesAreSpreadOverTheData) {
  const TokenData ten = data(10);
  const double first_two = (alone(ten, 0) + alone(ten, 1)) / 2;
  const double spread = must(validation_loss(*model_, ten, {.sequences = 2}));
  EXPECT_NEAR(spread, (alone(ten, 0) + alone(ten, 5)) / 2, 1e-5);
  EXPECT_GT(std::abs(spread - first_two), 1e-4) << "the difference shows";
}

TEST_F(ValidationLossTest, MaskedLabelsDoNotCount) {
  const TokenData masked = data(3, {1});
  EXPECT_NEAR(must(validation_loss(*model_, masked, {.batch = 1})),
              (alone(masked, 0) + alone(masked, 2)) / 2, 1e-5);
  EXPECT_NEAR(must(validation_loss(*model_, masked, {.batch = 3})),
              (alone(masked, 0) + alone(masked, 2)) / 2, 1e-5);
  expect_refused(validation_loss(*model_, data(2, {0, 1}), {}).status(), Code::kBadInput,
                 {"--val-labels", "masked"});
}

TEST_F(ValidationLossTest, UsesNoDropoutNoRandomNumberAndNoGradient) {
  const TokenData two = data(2);
  at::manual_seed(5);
  const at::Tensor next = at::rand({4});
  at::manual_seed(5);
  const double loss = must(validation_loss(*model_, two, {}));
  EXPECT_TRUE(at::rand({4}).equal(next));
  EXPECT_EQ(must(validation_loss(*model_, two, {})), loss);
  EXPECT_TRUE(model_->is_training());
  for (const at::Tensor& parameter : model_->parameters()) EXPECT_FALSE(parameter.grad().defined());
}

}  // namespace
}  // namespace elixir
