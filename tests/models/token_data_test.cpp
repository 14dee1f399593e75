#include "models/token_data.h"

#include <numeric>
#include <set>

#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"

namespace elixir {
namespace {

constexpr int64_t kSeq = 16;

struct Rows {
  std::vector<int64_t> inputs, targets;
  bool operator==(const Rows&) const = default;
};

Rows rows_of(const TokenData& data, int64_t step, int64_t first_row, size_t rows) {
  Rows read = {std::vector<int64_t>(rows * kSeq), std::vector<int64_t>(rows * kSeq)};
  EXPECT_TRUE(data.fill(step, first_row, read.inputs, read.targets).ok());
  return read;
}

// Token i is i, so a row shows where it began.
std::vector<uint16_t> counting_tokens(uint16_t first, uint16_t count) {
  std::vector<uint16_t> tokens(count);
  for (uint16_t i = 0; i < count; ++i) tokens[i] = first + i;
  return tokens;
}

class TokenDataTest : public ::testing::Test {
 protected:
  Result<TokenData> open(std::vector<std::string> files, uint64_t seed = 1,
                         std::vector<std::string> labels = {}) {
    const bool bare = !files.empty() && files.front().ends_with(".bin");
    return TokenData::open({.files = std::move(files),
                            .labels = std::move(labels),
                            .vocabulary = 50257,
                            .bare = bare ? std::optional(TokenType::kUint16) : std::nullopt,
                            .seq = kSeq,
                            .seed = seed});
  }
  // Of tokens that count from 0 on.
  Result<TokenData> with_labels(const std::vector<int32_t>& labels) {
    std::vector<int32_t> tokens(labels.size());
    std::iota(tokens.begin(), tokens.end(), 0);
    return TokenData::open({.files = {write("tokens.bin", tokens)},
                            .labels = {write("labels.bin", labels)},
                            .vocabulary = 50257,
                            .bare = TokenType::kInt32,
                            .seq = kSeq});
  }
  std::string write(const char* name, const std::vector<int32_t>& numbers) {
    return folder_.write(name, std::string(reinterpret_cast<const char*>(numbers.data()),
                                           numbers.size() * sizeof(int32_t)));
  }

  TemporaryFolder folder_;
};

TEST_F(TokenDataTest, TargetsAreTheNextTokensAcrossFiles) {
  // Files of 1 and 3 tokens, too: a row may touch many.
  const TokenData data = must(open({folder_.write_tokens("a.bin", counting_tokens(0, 20)),
                                    folder_.write_tokens("b.bin", counting_tokens(20, 1)),
                                    folder_.write_tokens("c.bin", counting_tokens(21, 3)),
                                    folder_.write_tokens("d.bin", counting_tokens(24, 16))}));
  EXPECT_EQ(data.tokens(), 40);
  std::set<int64_t> starts;
  for (int64_t step = 0; step < 50; ++step) {
    const Rows rows = rows_of(data, step, 0, 4);
    for (size_t row = 0; row < 4; ++row) {
      const int64_t start = rows.inputs[row * kSeq];
      starts.insert(start);
      for (int64_t i = 0; i < kSeq; ++i) {
        ASSERT_EQ(rows.inputs[row * kSeq + i], start + i);
        ASSERT_EQ(rows.targets[row * kSeq + i], start + i + 1);
      }
    }
  }
  // 200 draws of 24 starts: each is seen, from the first token to the last sequence that fits.
  EXPECT_EQ(starts.size(), 24u);
  EXPECT_EQ(*starts.begin(), 0);
  EXPECT_EQ(*starts.rbegin(), 40 - kSeq - 1);
}

TEST_F(TokenDataTest, RanksTogetherReadWhatOneRankReads) {
  const TokenData data = must(open({folder_.write_tokens("a.bin", counting_tokens(0, 5000))}));
  constexpr size_t kRanks = 3, kBatch = 2;
  for (int64_t step : {0, 1, 17}) {
    Rows joined;
    for (size_t rank = 0; rank < kRanks; ++rank) {
      const Rows part = rows_of(data, step, static_cast<int64_t>(rank * kBatch), kBatch);
      joined.inputs.insert(joined.inputs.end(), part.inputs.begin(), part.inputs.end());
      joined.targets.insert(joined.targets.end(), part.targets.begin(), part.targets.end());
    }
    EXPECT_EQ(joined, rows_of(data, step, 0, kRanks * kBatch));
  }
}

TEST_F(TokenDataTest, DependsOnSeedStepAndRow) {
  const std::string file = folder_.write_tokens("a.bin", counting_tokens(0, 50000));
  const Result<TokenData> data = open({file}), again = open({file}), other = open({file}, 2);
  ASSERT_TRUE(data.ok() && again.ok() && other.ok());
  const Rows rows = rows_of(*data, 3, 4, 2);
  EXPECT_EQ(rows, rows_of(*again, 3, 4, 2));
  EXPECT_NE(rows, rows_of(*other, 3, 4, 2));
  EXPECT_NE(rows, rows_of(*data, 4, 4, 2));
  EXPECT_NE(rows, rows_of(*data, 3, 6, 2));
}

// Of other files than the tokens, cut elsewhere.
TEST_F(TokenDataTest, LabelsStandOneTokenFurtherOn) {
  const TokenData data = must(open({folder_.write_tokens("a.bin", counting_tokens(0, 100))}, 1,
                                   {folder_.write_tokens("b.bin", counting_tokens(1000, 30)),
                                    folder_.write_tokens("c.bin", counting_tokens(1030, 70))}));
  for (int64_t step = 0; step < 20; ++step) {
    const Rows rows = rows_of(data, step, 0, 2);
    for (size_t i = 0; i < rows.inputs.size(); ++i) {
      ASSERT_EQ(rows.targets[i], rows.inputs[i] + 1 + 1000);
    }
  }
}

TEST_F(TokenDataTest, EachTokenHasALabel) {
  const std::string tokens = folder_.write_tokens("a.bin", counting_tokens(0, 100));
  for (const uint16_t count : {99, 101}) {
    expect_refused(
        open({tokens}, 1, {folder_.write_tokens("b.bin", counting_tokens(0, count))}).status(),
        Code::kBadInput, {"--labels", fmt::format("{} labels", count), "100 tokens"});
  }
}

TEST_F(TokenDataTest, ARowWithoutALabelIsNotTaken) {
  // Labels at the very ends and in the middle: each is found from every place, and nothing else is.
  for (const int64_t labelled : {1, 50, 99}) {
    std::vector<int32_t> labels(100, -100);
    labels[static_cast<size_t>(labelled)] = 7;
    const TokenData data = must(with_labels(labels));
    for (int64_t step = 0; step < 50; ++step) {
      const Rows rows = rows_of(data, step, 0, 1);
      const auto at = std::find(rows.targets.begin(), rows.targets.end(), 7);
      ASSERT_NE(at, rows.targets.end());
      EXPECT_EQ(rows.inputs[static_cast<size_t>(at - rows.targets.begin())], labelled - 1);
    }
  }
}

TEST_F(TokenDataTest, LabelsThatAreAllMaskedAreAnError) {
  const TokenData data = must(with_labels(std::vector<int32_t>(100, -100)));
  std::vector<int64_t> inputs(kSeq), targets(kSeq);
  expect_refused(data.fill(0, 0, inputs, targets), Code::kBadInput,
                 {"labels.bin", "every label is masked (-100)"});
}

TEST_F(TokenDataTest, SequencesLieOneBehindTheOther) {
  const TokenData data =
      must(open({folder_.write_tokens("a.bin", counting_tokens(0, 2 * kSeq + 5)),
                 folder_.write_tokens("b.bin", counting_tokens(2 * kSeq + 5, kSeq - 4))}));
  EXPECT_EQ(data.sequences(), 3);  // of 49 tokens
  std::vector<int64_t> inputs(kSeq), targets(kSeq);
  for (int64_t index = 0; index < data.sequences(); ++index) {
    ASSERT_TRUE(data.sequence(index, inputs, targets).ok());
    for (int64_t i = 0; i < kSeq; ++i) {
      EXPECT_EQ(inputs[static_cast<size_t>(i)], index * kSeq + i);
      EXPECT_EQ(targets[static_cast<size_t>(i)], index * kSeq + i + 1);
    }
  }
}

TEST_F(TokenDataTest, SequencesHaveTheirLabels) {
  std::vector<int32_t> labels(2 * kSeq + 1, -100);
  labels[kSeq] = 7;
  const TokenData data = must(with_labels(labels));
  std::vector<int64_t> inputs(kSeq), targets(kSeq);
  ASSERT_TRUE(data.sequence(0, inputs, targets).ok());
  EXPECT_EQ(targets.back(), 7);
  ASSERT_TRUE(data.sequence(1, inputs, targets).ok());
  EXPECT_EQ(std::count(targets.begin(), targets.end(), -100), kSeq) << "all masked is allowed";
}

TEST_F(TokenDataTest, MessagesNameTheFlagsOfTheFiles) {
  const std::string path = folder_.write("short.txt", "short");
  const Status status =
      TokenData::open({.files = {path}, .seq = kSeq, .files_flag = "--val-data"}).status();
  EXPECT_THAT(status.message(), StartsWith("--val-data "));
}

TEST_F(TokenDataTest, RefusesTooShortData) {
  // One sequence and the token after it: 17 are just enough.
  EXPECT_TRUE(open({folder_.write("enough.txt", std::string(kSeq + 1, 'a'))}).ok());
  expect_refused(open({folder_.write("short.txt", std::string(kSeq, 'a'))}).status(),
                 Code::kBadInput, {"short.txt", "16 tokens", "needs 17", "smaller --seq"});
}

TEST_F(TokenDataTest, RefusesMixedAndMissingFiles) {
  const std::string text = folder_.write("a.txt", std::string(100, 'a'));
  std::string numpy = "{'descr': '|u1', 'fortran_order': False, 'shape': (100,), }";
  numpy.resize(118, ' ');
  const std::string tokens = folder_.write(
      "b.npy", std::string("\x93NUMPY\x01\0\x76\0", 10) + numpy + std::string(100, 'a'));
  EXPECT_THAT(open({text, tokens}).status().message(),
              AllOf(HasSubstr("a.txt"), HasSubstr("b.npy"), HasSubstr("mixed")));
  EXPECT_EQ(open({}).status().code(), Code::kBadInput);
  EXPECT_THAT(open({text, folder_.path("gone.txt")}).status().message(), HasSubstr("gone.txt"));
}

TEST_F(TokenDataTest, ReportsATokenBeyondTheVocabulary) {
  std::vector<uint16_t> tokens(TokenFile::kCheckedTokens + 4000, 5);
  std::fill(tokens.begin() + TokenFile::kCheckedTokens, tokens.end(), 65535);
  const TokenData data = must(open({folder_.write_tokens("late.bin", tokens)}));
  Status status;
  std::vector<int64_t> inputs(kSeq * 64), targets(kSeq * 64);
  for (int64_t step = 0; step < 1000 && status.ok(); ++step) {
    status = data.fill(step, 0, inputs, targets);
  }
  expect_refused(status, Code::kBadInput, {"token 65535"});
}

}  // namespace
}  // namespace elixir
