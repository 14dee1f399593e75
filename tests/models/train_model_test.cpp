#include "models/train_model.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "models/open_data.h"
#include "models/run_record.h"
#include "models/written_folders.h"
#include "planner/models/config_json.h"
#include "planner/plan/plan_json.h"
#include "planner/search/make_plan.h"
#include "tests/models/parsed_flags.h"
#include "tests/models/saved_steps.h"
#include "tests/models/tiny_gpt2.h"
#include "tests/planner/gpt_profile.h"
#include "tests/planner/machines.h"
#include "tests/support/every_case.h"
#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"

namespace elixir {
namespace {

// A folder of one tensor. `dtype`: of config.json, which says none if it is "".
std::string model_folder_in(const TemporaryFolder& folder, const std::string& name,
                            const std::string& dtype, ComputeType tensors = ComputeType::kFp32,
                            const std::string& more = "") {
  folder.write(name + "/config.json",
               fmt::format(R"({{"model_type": "llama", "vocab_size": 300, "hidden_size": 32,
                                "num_hidden_layers": 1, "num_attention_heads": 4,
                                "max_position_embeddings": 64, "intermediate_size": 64{}{}}})",
                           dtype.empty() ? "" : R"(, "torch_dtype": ")" + dtype + "\"", more));
  const auto bytes = static_cast<uint64_t>(element_bytes(tensors));
  const checkpoints::TensorEntry weight = {"w", &checkpoints::dtype_of(tensors), {1}, 0, bytes};
  folder.write(name + "/model.safetensors",
               checkpoints::encode_header({&weight, 1}) + std::string(bytes, '\0'));
  return folder.path(name);
}

class TrainModel : public ::testing::Test {
 protected:
  const TemporaryFolder folder_;
};

// ---- what follows from a folder ----

TEST_F(TrainModel, TheFolderSaysTheType) {
  const struct {
    const char* named;
    ComputeType tensors, type;
  } kCases[] = {
      {"bfloat16", ComputeType::kFp32, ComputeType::kBf16},
      {"float16", ComputeType::kFp32, ComputeType::kFp16},
      {"float32", ComputeType::kBf16, ComputeType::kFp32},
      {"", ComputeType::kBf16, ComputeType::kBf16},
      {"", ComputeType::kFp16, ComputeType::kFp16},
      {"", ComputeType::kFp32, ComputeType::kFp32},
      {"float64", ComputeType::kBf16, ComputeType::kBf16},
  };
  for (const auto& one : kCases) {
    SCOPED_TRACE(one.named);
    const std::string model = model_folder_in(folder_, "m", one.named, one.tensors);
    const Parsed parsed = parse("--init " + model);
    ASSERT_EQ(parsed.exit_code, -1) << parsed.errors;
    EXPECT_EQ(parsed.options.run.dtype, one.type);
    EXPECT_EQ(parsed.options.model.dtype, one.type);
    EXPECT_EQ(parsed.options.run.dynamic_loss_scale.has_value(), one.type == ComputeType::kFp16);
    EXPECT_THAT(parsed.options.said, Contains(HasSubstr("the type of " + model)));
    EXPECT_EQ(parse("--dtype bf16 --init " + model).options.run.dtype, ComputeType::kBf16);
    EXPECT_EQ(parse("--config " + model + "/config.json").options.run.dtype, one.type);
  }
  // transformers 5 writes it so.
  const std::string newer =
      model_folder_in(folder_, "m", "", ComputeType::kFp32, R"(, "dtype": "bfloat16")");
  EXPECT_EQ(parse("--init " + newer).options.run.dtype, ComputeType::kBf16);
  EXPECT_EQ(parse("--model nano --init " + newer).options.run.dtype, ComputeType::kBf16);
  EXPECT_EQ(parse("--model small").options.run.dtype, ComputeType::kFp32);
}

TEST_F(TrainModel, ARunThatIsResumedKeepsItsType) {
  const std::string config = planner::config_json(tiny_gpt2_config(), ComputeType::kBf16);
  const std::string saved = save_step(folder_.path(), 10, config);
  EXPECT_EQ(parse("--resume " + saved).options.run.dtype, ComputeType::kBf16);
  EXPECT_EQ(parse("--resume latest --checkpoints " + folder_.path()).options.run.dtype,
            ComputeType::kBf16);
}

TEST_F(TrainModel, TheRateFollowsFromTheWeights) {
  const std::string model = model_folder_in(folder_, "m", "");
  EXPECT_EQ(parse("--init " + model).options.adamw.lr, kFineTuningLr);
  EXPECT_EQ(parse("--lr 0 --init " + model).options.adamw.lr, kFineTuningLr);
  EXPECT_EQ(parse("--lr 0.5 --init " + model).options.adamw.lr, 0.5);
  EXPECT_THAT(parse("--init " + model).options.said, Contains(HasSubstr("lr 2e-05")));
  EXPECT_EQ(parse("--config " + model + "/config.json").options.adamw.lr, 6e-4);
  EXPECT_EQ(parse("").options.adamw.lr, 1e-3);
  EXPECT_THAT(parse("").options.said, IsEmpty()) << "the demo's model says nothing";
}

TEST(LrOfSize, IsThatOfGpt3) {
  EXPECT_EQ(planner::lr_of_size(0), 6e-4);
  EXPECT_EQ(planner::lr_of_size(124'439'808), 6e-4);
  EXPECT_EQ(planner::lr_of_size(1'300'000'000), 2e-4);
  EXPECT_EQ(planner::lr_of_size(8'000'000'000), 1.2e-4);
  EXPECT_EQ(planner::lr_of_size(UINT64_MAX), 6e-5);
}

TEST_F(TrainModel, SequencesAreAsThePlannersUnlessTold) {
  const std::string model = model_folder_in(folder_, "m", "");
  EXPECT_EQ(parse("--init " + model).options.model.seq, 64);
  EXPECT_EQ(parse("--init " + model + " --seq 8").options.model.seq, 8);
  EXPECT_EQ(parse("--model small").options.model.seq, 1024);
  EXPECT_EQ(parse("--model llama-7b").options.model.seq, 1024);
}

// ---- data of a run that is resumed ----

class ResumedData : public TrainModel {
 protected:
  // A checkpoint of a model of so many tokens, whose run was trained on `data`; "": the default.
  std::string checkpoint_of(int64_t vocabulary, const std::string& data, bool text) {
    planner::TransformerConfig config = tiny_gpt2_config();
    config.vocabulary = vocabulary;
    TrainOptions options;
    options.config = config;
    if (!data.empty()) options.data = {data};
    return save_step(folder_.path(), ++step_, planner::config_json(config, ComputeType::kFp32),
                     /*optimizer_states=*/true, {}, run_record(options, options.data, text, 1));
  }
  static Parsed resume(const std::string& checkpoint, const std::string& more) {
    return parse("--lr 1 --seq 8 --resume " + checkpoint + more);
  }

  uint64_t step_ = 0;
};

TEST_F(ResumedData, IsOfTheKindThatTheRunHadSoFar) {
  const std::string text = folder_.write("text.txt", std::string(200, 't'));
  const std::string tokens = folder_.write("tokens.bin", std::string(400, '\0'));
  const std::string bare = " --tokens-dtype uint16 --data " + tokens;
  struct Case {
    int64_t vocabulary;
    std::string data;
    bool text;
    bool needs_none, takes_text;
  };
  for (const Case& one : {Case{300, tokens, false, false, false},
                          {300, text, true, false, true},
                          {300, "", true, true, true},
                          {256, tokens, false, false, true},
                          {256, text, true, false, true},
                          {256, "", true, true, true}}) {
    SCOPED_TRACE(fmt::format("{} '{}'", one.vocabulary, one.data));
    const std::string checkpoint = checkpoint_of(one.vocabulary, one.data, one.text);
    EXPECT_EQ(check_data(resume(checkpoint, "").options).empty(), one.needs_none);
    EXPECT_EQ(check_data(resume(checkpoint, " --data " + text).options).empty(), one.takes_text);
    EXPECT_THAT(check_data(resume(checkpoint, " --bytes --data " + text).options).all(), IsEmpty());
    EXPECT_THAT(check_data(resume(checkpoint, bare).options).all(), IsEmpty());
  }
}

TEST_F(ResumedData, AFolderThatIsNoCheckpointHasNoModel) {
  const std::string tokens = folder_.write("tokens.bin", std::string(400, '\0'));
  const std::string model = model_folder_in(folder_, "m", "");
  for (const std::string& named : {folder_.path("gone"), std::string("true"), model}) {
    const Parsed parsed = parse("--tokens-dtype uint16 --data " + tokens + " --resume " + named);
    EXPECT_EQ(parsed.exit_code, 4);
    EXPECT_THAT(parsed.lines(), ElementsAre(HasSubstr("--resume " + named))) << parsed.errors;
  }
}

// ---- a plan ----

TEST_F(TrainModel, WithoutFlagsTheRunIsAsThePlanSays) {
  for (const bool checkpointed : {false, true}) {
    planner::Plan plan =
        must(planner::make_plan(
                 planner::testing::gpt_profile(*planner::transformer_config("gpt2-nano")),
                 planner::testing::a100_server(1), {.tokens = 1024}))
            .plan;
    plan.type = ComputeType::kFp16;
    plan.checkpointed = checkpointed;
    const std::string path = folder_.write("plan.json", planner::to_json(plan));
    const Parsed parsed = parse("--plan " + path);
    ASSERT_EQ(parsed.exit_code, -1) << parsed.errors;
    EXPECT_EQ(parsed.options.run.dtype, ComputeType::kFp16);
    EXPECT_EQ(parsed.options.model.checkpoint_activations, checkpointed);
    EXPECT_THAT(parsed.options.said, Contains(HasSubstr(path)));
    const Parsed other =
        parse("--plan " + path + " --dtype fp32 " +
              (checkpointed ? "--no-checkpoint-activations" : "--checkpoint-activations"));
    EXPECT_EQ(other.exit_code, 2);
    EXPECT_THAT(other.lines(), ElementsAre(HasSubstr("--dtype fp32: the plan"),
                                           HasSubstr("checkpoint-activations: the plan")));
  }
}

// ---- folders that are none ----

TEST_F(TrainModel, AMissingFolderIsDownloadedOrInTheCache) {
  ::setenv("HF_HUB_CACHE", folder_.path().c_str(), 1);
  const Parsed missing = parse("--init meta-llama/Llama-3.1-8B");
  EXPECT_EQ(missing.exit_code, 4);
  EXPECT_THAT(missing.errors, AllOf(HasSubstr("this folder does not exist"),
                                    HasSubstr("hf download meta-llama/Llama-3.1-8B --local-dir")));
  const std::string snapshot =
      model_folder_in(folder_, "models--meta-llama--Llama-3.1-8B/snapshots/abc", "");
  for (const std::string& named :
       {std::string("meta-llama/Llama-3.1-8B"), folder_.path("models--meta-llama--Llama-3.1-8B")}) {
    EXPECT_THAT(parse("--init " + named).errors, HasSubstr(snapshot)) << named;
  }
  ::unsetenv("HF_HUB_CACHE");
  EXPECT_THAT(parse("--init ./gone").errors,
              HasSubstr("this folder does not exist; give the folder of a Hugging Face model"));
  const std::string file = folder_.write("file", "x");
  EXPECT_THAT(parse("--init " + file).errors, HasSubstr("it is a file; give its folder"));
}

TEST_F(TrainModel, AnUnknownNameIsReportedAsItWasTyped) {
  EXPECT_THAT(parse("--model gpt3").errors, HasSubstr("no model is called 'gpt3'"));
  EXPECT_THAT(parse("--model nan0").errors,
              AllOf(HasSubstr("'nan0'"), HasSubstr("did you mean 'gpt2-nano'?")));
  EXPECT_THAT(parse("--model llama-8b").errors, HasSubstr("'llama-8b'"));
}

// ---- all that is wrong, at once ----

struct Mistake {
  std::string flags, says;
  bool bad_model = false;  // in the folder of --init

  std::string flag() const { return flags.substr(0, flags.find(' ')); }
};

class Mistakes : public TrainModel {
 protected:
  Mistakes() {
    good_ = model_folder_in(folder_, "good", "bfloat16");
    bad_ = model_folder_in(folder_, "bad", "bfloat16", ComputeType::kFp32,
                           R"(, "hidden_act": "cube")");
    text_ = folder_.write("text.txt", std::string(200, 't'));
    all_ = {{"", "'hidden_act' is", true},
            {"--seq 100000", "longer than the context"},
            {"--data " + folder_.path(), "a directory"},
            {"--data https://example.org/a.txt", "it is a URL"},
            {"--data " + folder_.path("gone.txt"), "gone.txt: cannot be opened"},
            {"--labels " + text_, "labels are tokens"},
            {"--lr nan", "--lr must be"},
            {"--dtype bf17", "use bf16"},
            {"--stpes 5", "did you mean '--steps'?"},
            {"--batch many", "--batch"},
            {"--dropout 2", "--dropout must be"},
            {"--accumulate 0", "--accumulate must be"},
            {"--plan " + folder_.path("gone.json"), "--plan"},
            {"--keep 2", "--keep needs"},
            {"--attention fast", "--attention"},
            {"--strategy zero4", "--strategy"},
            {"--link-gb-s 4", "--link-gb-s must be"},
            {"--inject-overflow 0", "--inject-overflow must be"},
            {"--bf16", "here it is --dtype bf16"},
            {"--layers -1", "--layers"},
            {"--jsonl " + folder_.path("gone/a"), "--jsonl " + folder_.path("gone/a")},
            {"--trace " + folder_.path(), "--trace " + folder_.path() + ": it is a folder"},
            {"--memory-picture " + folder_.path("gone/b"), "--memory-picture"},
            {"--export " + folder_.path("gone/c"), "--export: cannot save into"}};
  }

  // What the command line says, or what the run would, before it starts.
  static std::vector<std::string> told(const Parsed& parsed) {
    if (parsed.exit_code >= 0) return parsed.lines();
    Problems problems = check_data(parsed.options);
    problems.add(check_weights(parsed.options));
    problems.add(check_written(parsed.options));
    std::vector<std::string> lines;
    for (const Status& problem : problems.all()) lines.push_back(problem.message());
    return lines;
  }

  void expect_all_told(const std::vector<const Mistake*>& mistakes) const {
    std::string flags;
    bool bad_model = false;
    for (const Mistake* mistake : mistakes) {
      flags += " " + mistake->flags;
      bad_model |= mistake->bad_model;
    }
    flags = "--init " + (bad_model ? bad_ : good_) + flags;
    if (flags.find("--data") == flags.npos) flags += " --bytes --data " + text_;
    const std::vector<std::string> lines = told(parse(flags));
    for (const Mistake* mistake : mistakes) {
      EXPECT_THAT(lines, Contains(HasSubstr(mistake->says))) << flags;
    }
  }

  std::string good_, bad_, text_;
  std::vector<Mistake> all_;
};

TEST_F(Mistakes, PairsAndTriplesAreToldTogether) {
  const size_t stride = every_case() ? 1 : 7;
  size_t triple = 0;
  for (size_t i = 0; i < all_.size(); ++i) {
    for (size_t j = i + 1; j < all_.size(); ++j) {
      expect_all_told({&all_[i], &all_[j]});
      for (size_t k = j + 1; k < all_.size(); ++k) {
        if (triple++ % stride == 0) expect_all_told({&all_[i], &all_[j], &all_[k]});
      }
    }
  }
}

TEST_F(Mistakes, EachIsOneLine) {
  for (const Mistake& mistake : all_) {
    const std::string init = mistake.bad_model ? bad_ : good_;
    const std::string data = mistake.flag() == "--data" ? "" : " --bytes --data " + text_;
    const Parsed parsed = parse("--init " + init + data + " " + mistake.flags);
    // For a sequence that is too long the text is too short, too.
    EXPECT_THAT(told(parsed), SizeIs(mistake.flag() == "--seq" ? 2 : 1)) << mistake.flags;
    EXPECT_THAT(parsed.lines(), Each(StartsWith("train_gpt2: "))) << mistake.flags;
  }
}

TEST_F(Mistakes, TheExitCodeIsOfTheFirst) {
  EXPECT_EQ(parse("--init " + folder_.path("gone") + " --dropout 2").exit_code, 4);
  EXPECT_EQ(parse("--dropout 2 --data " + folder_.path("gone.txt")).exit_code, 2);
}

TEST_F(Mistakes, OneThatChangesWhatAnotherMeansIsToldToo) {
  const std::string given = "--init " + good_ + " --bytes --data " + text_;
  EXPECT_THAT(parse(given + " --seq 0 --batch -1").lines(),
              ElementsAre(HasSubstr("--batch must be"), HasSubstr("--seq must be at least 1")));
  EXPECT_THAT(parse(given + " --steps 0 --checkpoints " + text_).lines(),
              ElementsAre(HasSubstr("--steps must be"), HasSubstr("it is a file; give a folder")));
  EXPECT_THAT(parse(given + " --model gpt9 --lr -1").lines(), SizeIs(2));
  EXPECT_THAT(parse("--init gone --model gpt9 --bytes --data " + text_).lines(),
              ElementsAre(HasSubstr("this folder does not exist"), HasSubstr("'gpt9'")));
}

// Whose model is not the one that is meant is not held against it.
TEST_F(Mistakes, AMisspeltModelHasNoOtherMistakes) {
  EXPECT_THAT(parse("--inti " + good_ + " --seq 1000").lines(),
              ElementsAre(HasSubstr("did you mean '--init'?")));
}

}  // namespace
}  // namespace elixir
