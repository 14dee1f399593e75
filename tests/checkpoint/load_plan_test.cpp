#include "checkpoint/load_plan.h"

#include <cmath>
#include <set>

#include "checkpoint/left_out.h"
#include "tests/checkpoint/small_checkpoint.h"
#include "tests/support/matchers.h"

namespace elixir::checkpoints {
namespace {

// A plain model of these tensors, in one file.
class PlainModel {
 public:
  explicit PlainModel(std::vector<SmallTensor> tensors)
      : tensors_(small_tensors(std::move(tensors), 1)) {
    folder_.write("model.safetensors", small_file(tensors_));
  }
  const std::vector<SmallTensor>& tensors() const { return tensors_; }
  Result<LoadPlan> plan(const std::vector<WantedParameter>& wanted,
                        const LoadChoice& choice = {}) const {
    return plan_load(must(open_stored_folder(folder_.path())), wanted, choice);
  }
  std::string refusal(const std::vector<WantedParameter>& wanted,
                      const LoadChoice& choice = {}) const {
    const std::string message = refusal_of(plan(wanted, choice).status(), Code::kBadInput);
    EXPECT_THAT(message, HasSubstr(folder_.path()));
    return message;
  }

 private:
  const TemporaryFolder folder_;
  const std::vector<SmallTensor> tensors_;
};

class CheckpointPlan : public ::testing::Test {
 protected:
  Result<LoadPlan> plan(const LoadChoice& choice = {}) {
    small_.write(folder_);
    return plan_load(must(open_stored_folder(folder_.path())), wanted_, choice);
  }
  std::string refusal(const LoadChoice& choice = {}) {
    return refusal_of(plan(choice).status(), Code::kBadInput);
  }

  const TemporaryFolder folder_;
  SmallCheckpoint small_;
  std::vector<WantedParameter> wanted_ = small_.wanted();
};

TEST_F(CheckpointPlan, ACountOfStepsIsAWholeNumberOf0OrMore) {
  for (const float count : {NAN, INFINITY, -3.0f, 1.5f, 1e30f}) {
    small_.set_count("h.0.w", count);
    small_.seal();
    EXPECT_THAT(refusal(), AllOf(HasSubstr("tensor 'state.h.0.w.step': it is"),
                                 HasSubstr("a whole number of 0 or more")));
    EXPECT_TRUE(plan({.states = false}).ok());
  }
  small_.set_count("h.0.w", 0);
  small_.seal();
  EXPECT_TRUE(plan().ok());
}

TEST_F(CheckpointPlan, EveryPieceIsHashedAndTheHeadersAreAmongThem) {
  const LoadPlan plan = must(this->plan());
  EXPECT_TRUE(plan.has_states);
  EXPECT_THAT(plan.updates, ElementsAre(0, 3, 998, 998));  // frozen.w has no states
  uint64_t bytes = 0;
  for (const auto* pieces : {&plan.params, &plan.states}) {
    std::map<uint32_t, uint64_t> next;  // of each file
    for (const LoadPiece& piece : *pieces) {
      EXPECT_TRUE(piece.xxh3.has_value());
      EXPECT_EQ(piece.offset, next[piece.file]);
      next[piece.file] = piece.offset + piece.bytes;
      bytes += piece.bytes;
    }
  }
  EXPECT_EQ(plan.bytes, bytes);
}

TEST_F(CheckpointPlan, WithoutStatesTheModelAlone) {
  const LoadPlan plan = must(this->plan({.states = false}));
  EXPECT_FALSE(plan.has_states);
  EXPECT_TRUE(plan.states.empty());
  EXPECT_THAT(plan.updates, ElementsAre(0, 0, 0, 0));
}

TEST_F(CheckpointPlan, AFolderWithoutStatesHasNone) {
  small_.files.erase("optimizer/optimizer-00001-of-00001.safetensors");
  small_.manifest.optimizer_states = false;
  small_.list_files();
  const LoadPlan plan = must(this->plan());
  EXPECT_FALSE(plan.has_states);
}

// Only what is not trained may be missing, and only where the folder says that it is.
TEST_F(CheckpointPlan, WhatIsLeftOutIsNotLookedFor) {
  const size_t erased = std::erase_if(
      small_.model_2, [](const SmallTensor& tensor) { return tensor.name == "frozen.w"; });
  ASSERT_EQ(erased, 1u);
  small_.seal();
  EXPECT_THAT(refusal(), AllOf(HasSubstr("no tensor 'frozen.w'"), Not(HasSubstr("not trained"))));
  small_.manifest.left_out.emplace();
  small_.seal();
  const LoadPlan plan = must(this->plan());
  EXPECT_EQ(plan.left_out, 1u);
  EXPECT_THAT(plan.stored_names, ElementsAre("", "h.0.b", "h.0.w", "wte.weight"));
  EXPECT_TRUE(plan.has_states);
  EXPECT_THAT(plan.updates, ElementsAre(0, 3, 998, 998));
  wanted_[0].trained = true;
  EXPECT_THAT(refusal(), AllOf(HasSubstr("no tensor 'frozen.w'"),
                               HasSubstr("saved without what is not trained")));
}

class StatesAlonePlan : public CheckpointPlan {
 protected:
  StatesAlonePlan() {
    std::erase_if(small_.files, [](const auto& file) { return file.first.starts_with("model"); });
    small_.manifest.states_alone = true;
    small_.manifest.left_out = {4, 1000, 7};
    small_.list_files();
  }
};

TEST_F(StatesAlonePlan, LeavesOutAllValuesAndReadsAllStates) {
  const LoadPlan plan = must(this->plan());
  EXPECT_EQ(plan.left_out, 4u);
  EXPECT_TRUE(plan.params.empty());
  EXPECT_THAT(plan.stored_names, ElementsAre("", "", "", ""));
  EXPECT_TRUE(plan.has_states);
  EXPECT_THAT(plan.updates, ElementsAre(0, 3, 998, 998));
  std::set<std::pair<uint32_t, StateKind>> arrays;
  for (const LoadPiece& piece : plan.states) {
    for (const LoadRange& range : piece.ranges) arrays.insert({range.parameter, range.kind});
  }
  EXPECT_EQ(arrays.size(), 9u) << "moments and low halves of three parameters";
}

TEST_F(StatesAlonePlan, IsNoModel) {
  EXPECT_THAT(refusal({.states = false}), HasSubstr("it holds states alone, without the model"));
  wanted_[0].trained = true;
  EXPECT_THAT(refusal(), AllOf(HasSubstr("no tensor 'state.frozen.w.exp_avg'"),
                               HasSubstr("freeze it here, too")));
}

TEST_F(StatesAlonePlan, AFolderThatHoldsAnythingElseIsRefused) {
  const auto refusal = [&] {
    small_.list_files();
    small_.write(folder_);
    return refusal_of(open_stored_folder(folder_.path()).status(), Code::kBadInput);
  };
  small_.files["model-00001-of-00001.safetensors"] = small_file(small_.model_1);
  EXPECT_THAT(refusal(), HasSubstr("says that no model is here"));
  small_.files.clear();
  EXPECT_THAT(refusal(), HasSubstr("it holds no tensors"));
}

TEST_F(StatesAlonePlan, OtherValuesAreRefusedWithTheRemedy) {
  small_.write(folder_);
  const StoredFolder folder = must(open_stored_folder(folder_.path()));
  EXPECT_TRUE(check_left_out(folder, {4, 1000, 7}).ok());
  for (const LeftOut& other : {LeftOut{3, 1000, 7}, LeftOut{4, 1001, 7}, LeftOut{4, 1000, 8}}) {
    EXPECT_THAT(check_left_out(folder, other).message(),
                AllOf(HasSubstr(folder_.path()), HasSubstr("in bf16"),
                      HasSubstr("load the values that were saved beside it first")));
  }
}

// The same hash, however chunks and shards cut the parameter.
TEST(LeftOut, PiecesOfAParameterMayComeInAnyOrder) {
  std::vector<std::byte> bytes(2 * (10 * kLeftOutNumel + 5));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * i);
  const std::span<const std::byte> all(bytes);
  const uint64_t whole = left_out_hash("h.0.w", 0, 2, all);
  for (uint64_t cut = 0; cut <= 10; ++cut) {
    const uint64_t at = 2 * cut * kLeftOutNumel;
    EXPECT_EQ(left_out_hash("h.0.w", cut * kLeftOutNumel, 2, all.subspan(at)) +
                  left_out_hash("h.0.w", 0, 2, all.first(at)),
              whole);
  }
  EXPECT_NE(left_out_hash("h.0.v", 0, 2, all), whole);
  EXPECT_NE(left_out_hash("h.0.w", kLeftOutNumel, 2, all), whole);
  bytes.back() ^= std::byte{1};
  EXPECT_NE(left_out_hash("h.0.w", 0, 2, all), whole);
}

TEST_F(CheckpointPlan, StatesOfSomeAreRefused) {
  wanted_[0].trained = true;
  EXPECT_THAT(refusal(), AllOf(HasSubstr("no tensor 'state.frozen.w.exp_avg'"),
                               HasSubstr("load the model without states")));
  EXPECT_TRUE(this->plan({.states = false}).ok());
}

// What was trained there may be frozen now.
TEST_F(CheckpointPlan, StatesThatNobodyWantsAreLeft) {
  for (WantedParameter& parameter : wanted_) parameter.trained = false;
  const LoadPlan plan = must(this->plan());
  EXPECT_TRUE(plan.states.empty());
  EXPECT_THAT(plan.updates, ElementsAre(0, 0, 0, 0));
}

TEST_F(CheckpointPlan, StatesOfAnotherTypeOrShapeAreRefused) {
  SmallTensor& exp_avg = small_.optimizer[0];
  ASSERT_EQ(exp_avg.name, "state.wte.weight.exp_avg");
  exp_avg.dtype = "I32";
  small_.seal();
  EXPECT_THAT(refusal(), HasSubstr("'state.wte.weight.exp_avg': its dtype is I32, F32 is needed"));
  exp_avg.dtype = "F32";
  exp_avg.shape = {4, 5};
  small_.seal();
  EXPECT_THAT(refusal(), HasSubstr("its shape is [4, 5], the model's parameter has [5, 4]"));
  exp_avg.shape = {5, 4};
  small_.manifest.type = ComputeType::kFp16;
  small_.seal();
  EXPECT_THAT(refusal(), HasSubstr("its dtype is BF16, but elixir.json says that F16 was trained"));
}

TEST_F(CheckpointPlan, PiecesThatCutAnElementAreRefused) {
  small_.list_files(97);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("tensor '"), HasSubstr("lies in two pieces")));
}

// Names are those of the program that wrote it: nothing is guessed.
TEST_F(CheckpointPlan, NoPrefixIsGuessedInACheckpoint) {
  for (WantedParameter& parameter : wanted_) parameter.name = "transformer." + parameter.name;
  EXPECT_THAT(refusal(), HasSubstr("no tensor 'transformer.frozen.w'"));
}

TEST_F(CheckpointPlan, APartIsReadWhereTheRestMayBe) {
  wanted_ = {{"h.0.b", {6}}};
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr("tensor 'wte.weight'"), HasSubstr("does not have this parameter")));
  const LoadPlan plan = must(this->plan({.allow_rest = true}));
  EXPECT_THAT(plan.updates, ElementsAre(3));
  wanted_ = {{"steps", {2}, false}};
  EXPECT_THAT(refusal({.allow_rest = true}), HasSubstr("tensor 'steps': its dtype is I64"));
  EXPECT_TRUE(this->plan({.allow_rest = true, .any_dtype = true}).ok());
}

TEST(PlainPlan, RangesAreWithinPiecesOfTheLimit) {
  // 80 MB and an odd number of bytes before them.
  const PlainModel model({{"odd", "U8", {3}},
                          {"a", "F32", {20'000'000}, std::string(80'000'000, 'a')},
                          {"b", "F16", {5}}});
  const LoadPlan plan = must(model.plan({{"a", {20'000'000}}, {"b", {5}}}));
  ASSERT_EQ(plan.params.size(), 2u);
  EXPECT_EQ(plan.params[0].bytes, kMaxPieceBytes);
  EXPECT_THAT(plan.params[0].ranges, SizeIs(1));
  EXPECT_THAT(plan.params[1].ranges, SizeIs(2));  // the rest of a, and b
  EXPECT_EQ(plan.params[1].ranges[0].first, kMaxPieceBytes / 4);
  EXPECT_EQ(plan.bytes, 80'000'000u + 10);
  EXPECT_FALSE(plan.params[0].xxh3.has_value());
  EXPECT_FALSE(plan.has_states);
}

TEST(PlainPlan, APieceEndsWithAnElement) {
  const PlainModel model(
      {{"a", "F16", {1}}, {"b", "F32", {20'000'000}, std::string(80'000'000, 'b')}});
  const LoadPlan plan = must(model.plan({{"a", {1}}, {"b", {20'000'000}}}));
  ASSERT_EQ(plan.params.size(), 2u);
  EXPECT_EQ(plan.params[0].bytes, kMaxPieceBytes - 2);
  EXPECT_EQ(plan.params[1].ranges[0].first, kMaxPieceBytes / 4 - 1);
}

TEST(PlainPlan, OnePrefixMayBeMissing) {
  // As GPT-2 was published: "transformer." is missing, the masks are there.
  const PlainModel model({{"wte.weight", "F32", {4, 2}},
                          {"h.0.attn.bias", "F32", {1, 1, 2, 2}},
                          {"h.0.attn.c_attn.bias", "F32", {6}}});
  const std::vector<WantedParameter> wanted = {{"transformer.wte.weight", {4, 2}},
                                               {"transformer.h.0.attn.c_attn.bias", {6}}};
  const LoadPlan plan = must(model.plan(wanted));
  EXPECT_EQ(plan.bytes, 8u * 4 + 6 * 4);
  // One for all: what has it in the file is another tensor.
  EXPECT_THAT(model.refusal({{"transformer.wte.weight", {4, 2}},
                             {"transformer.h.0.attn.c_attn.bias", {6}},
                             {"lm_head.weight", {4, 2}}}),
              HasSubstr("no tensor 'lm_head.weight'"));
}

TEST(PlainPlan, OnePrefixMayBeMore) {
  const PlainModel model({{"model.embed.weight", "F32", {4}},
                          {"model.norm.weight", "F32", {2}},
                          {"lm_head.weight", "F32", {4}}});
  const std::vector<WantedParameter> wanted = {{"embed.weight", {4}}, {"norm.weight", {2}}};
  EXPECT_THAT(model.refusal(wanted), AllOf(HasSubstr("tensor 'lm_head.weight'"),
                                           HasSubstr("does not have this parameter")));
  EXPECT_TRUE(model.plan(wanted, {.ignored = {"lm_head.weight"}}).ok());
}

TEST(PlainPlan, ATiedHeadIsIgnoredByNameAlone) {
  const PlainModel model({{"model.embed.weight", "F32", {4}}, {"lm_head.weight", "F32", {4}}});
  const std::vector<WantedParameter> tied = {{"model.embed.weight", {4}}};
  EXPECT_THAT(model.refusal(tied), HasSubstr("tensor 'lm_head.weight'"));
  EXPECT_THAT(model.refusal(tied, {.ignored = {"other"}}), HasSubstr("tensor 'lm_head.weight'"));
  EXPECT_TRUE(model.plan(tied, {.ignored = {"lm_head.weight"}}).ok());
}

TEST(PlainPlan, AHeadThatIsACopyOfTheTokenEmbeddingIsTaken) {
  std::vector<SmallTensor> tensors = small_tensors({{"wte.weight", "F32", {300, 1024}},
                                                    {"h.0.b", "F32", {4}},
                                                    {"lm_head.weight", "F32", {300, 1024}}},
                                                   1);
  tensors[2].bytes = tensors[0].bytes;
  const std::vector<WantedParameter> tied = {{"transformer.wte.weight", {300, 1024}},
                                             {"transformer.h.0.b", {4}}};
  const LoadPlan plan = must(PlainModel(tensors).plan(tied));
  EXPECT_THAT(plan.copies, ElementsAre("lm_head.weight"));
  EXPECT_THAT(plan.stored_names, ElementsAre("wte.weight", "h.0.b"));
  const auto differs = AllOf(HasSubstr("tensor 'lm_head.weight'"),
                             HasSubstr("'wte.weight' is used in its place"), HasSubstr("differ"));
  tensors[2].bytes.back() ^= 1;
  EXPECT_THAT(PlainModel(tensors).refusal(tied), differs);
  EXPECT_TRUE(PlainModel(tensors).plan(tied, {.ignored = {"lm_head.weight"}})->copies.empty());
  tensors[2] = {"lm_head.weight", "BF16", {300, 1024}, tensors[0].bytes.substr(0, 300 * 1024 * 2)};
  EXPECT_THAT(PlainModel(tensors).refusal(tied), differs);
}

TEST(PlainPlan, SaysWhatIsMissingAndWhatIsNearest) {
  const PlainModel model({{"layers.0.weight", "F32", {4}}, {"layers.1.weight", "F32", {4}}});
  EXPECT_THAT(model.refusal({{"layers.0.weight", {4}}, {"layer.1.weight", {4}}}),
              AllOf(HasSubstr("no tensor 'layer.1.weight', which the model needs"),
                    HasSubstr("the nearest is 'layers.1.weight'")));
  EXPECT_THAT(model.refusal({{"layers.0.weight", {4}}}),
              AllOf(HasSubstr("tensor 'layers.1.weight': the model does not have this parameter"),
                    HasSubstr("the nearest is 'layers.0.weight'")));
  EXPECT_THAT(model.refusal({{"something entirely different", {4}}}), Not(HasSubstr("nearest")));
  EXPECT_THAT(model.refusal({{"layers.0.weight", {4}}, {"layers.0.weight", {4}}}),
              HasSubstr("two parameters of the model would be it"));
}

TEST(PlainPlan, ShapesAndTypesMustFit) {
  const PlainModel model({{"a", "F32", {2, 3}}, {"b", "F8_E4M3", {2}}, {"c", "F64", {2}}});
  EXPECT_THAT(model.refusal({{"a", {3, 2}}}),
              HasSubstr("tensor 'a': its shape is [2, 3], the model's parameter has [3, 2]"));
  EXPECT_THAT(model.refusal({{"a", {6}}}), HasSubstr("the model's parameter has [6]"));
  EXPECT_THAT(model.refusal({{"a", {2, 3}}, {"b", {2}}}),
              HasSubstr("tensor 'b': its dtype is F8_E4M3; parameters are read from BF16"));
  EXPECT_TRUE(model.plan({{"a", {2, 3}}, {"c", {2}}}, {.ignored = {"b"}}).ok());
}

TEST(LoadPlan, ArraysHaveTheNamesOfTheirTensors) {
  EXPECT_STREQ(state_name(StateKind::kExpAvg), "exp_avg");
  EXPECT_STREQ(state_name(StateKind::kExpAvgSq), "exp_avg_sq");
  EXPECT_STREQ(state_name(StateKind::kMasterLow), "master_low");
  EXPECT_STREQ(state_name(StateKind::kMaster), "master");
}

}  // namespace
}  // namespace elixir::checkpoints
