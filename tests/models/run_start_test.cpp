#include "models/run_start.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "planner/models/config_json.h"
#include "tests/models/saved_steps.h"
#include "tests/models/tiny_gpt2.h"
#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"

namespace elixir {
namespace {

const planner::TransformerConfig kTiny = tiny_gpt2_config();
const std::string kConfig = planner::config_json(kTiny, ComputeType::kFp32);

class RunStartTest : public ::testing::Test {
 protected:
  // Of FOLDER/checkpoints.
  CheckpointOptions options(const std::string& resume = "none") const {
    return {.folder = folder_.path("checkpoints"), .resume = resume};
  }
  std::string save(uint64_t step) const {
    std::filesystem::create_directory(folder_.path("checkpoints"));
    return save_step(folder_.path("checkpoints"), step, kConfig);
  }
  static std::string refused(const CheckpointOptions& options, Code code) {
    return refusal_of(find_start(options, /*lock_wait_s=*/0.1).status(), code);
  }

  const TemporaryFolder folder_;
};

TEST_F(RunStartTest, LatestWhereNothingIsYetBeginsAndSaysSo) {
  CheckpointOptions latest = options("latest");
  latest.init = "weights";
  const RunStart start = must(find_start(latest));
  EXPECT_EQ(start.folder, "weights");
  EXPECT_FALSE(start.resumes);
  EXPECT_THAT(start.said, ElementsAre(AllOf(HasSubstr("no checkpoint in"), HasSubstr("begins"))));
  EXPECT_TRUE(std::filesystem::is_directory(latest.folder)) << "it was not made";
}

TEST_F(RunStartTest, LatestIsTheNewestThatIsWholeAndSaysWhyOthersAreNot) {
  const std::string newest_whole = (save(10), save(20)), torn = save(30);
  std::filesystem::remove(torn + "/config.json");
  const RunStart start = must(find_start(options("latest")));
  EXPECT_EQ(start.folder, newest_whole);
  EXPECT_TRUE(start.resumes);
  EXPECT_THAT(start.said, ElementsAre(AllOf(HasSubstr(torn), HasSubstr("config.json")),
                                      HasSubstr("continuing from " + newest_whole)));
  EXPECT_THAT(start.damaged, ElementsAre(torn)) << "its step is to be saved again";
}

TEST_F(RunStartTest, LatestOfNoneThatIsWholeIsAnError) {
  std::filesystem::remove(save(10) + "/elixir.json");
  EXPECT_THAT(refused(options("latest"), Code::kBadInput), HasSubstr("no complete checkpoint"));
}

TEST_F(RunStartTest, CheckpointsOfAnotherRunAreNotWrittenOver) {
  save(10);
  EXPECT_THAT(refused(options(), Code::kInvalidArgument),
              AllOf(HasSubstr("of step 10"), HasSubstr("--resume latest")));
  const std::string older = save(20);
  EXPECT_THAT(refused(options(folder_.path("checkpoints/step-000000010")), Code::kInvalidArgument),
              AllOf(HasSubstr("step 20"), HasSubstr("after step 10")));
  EXPECT_TRUE(find_start(options(older)).ok());
}

TEST_F(RunStartTest, LatestPassesOverWhatALoadFoundDamaged) {
  const std::string oldest = save(10), older = save(20), newest = save(30);
  const auto start =
      must(find_start(options("latest"), /*lock_wait_s=*/1, {{newest, "bad bytes"}}));
  EXPECT_EQ(start.folder, older);
  EXPECT_EQ(start.step, 20u);
  EXPECT_THAT(start.damaged, ElementsAre(newest));
  EXPECT_THAT(start.said, ElementsAre(newest + " is passed over: bad bytes",
                                      HasSubstr("continuing from " + older)));
  expect_refused(
      find_start(options("latest"), /*lock_wait_s=*/1,
                 {{oldest, "one"}, {older, "two"}, {newest, "three"}})
          .status(),
      Code::kBadInput,
      {"no complete checkpoint", newest + ": three", oldest + ": one", "another --checkpoints"});
}

TEST_F(RunStartTest, DamageBesideTheTensorsIsFoundBeforeAnythingStarts) {
  const std::string whole = save(10), damaged = save(20);
  EXPECT_TRUE(check_bytes(damaged, 1).ok());
  std::string other = kConfig;
  other[other.size() / 2] ^= 1;
  folder_.write("checkpoints/step-000000020/config.json", other);
  EXPECT_THAT(check_bytes(damaged, 1).message(), HasSubstr("config.json"));
  const RunStart start = must(find_start(options("latest")));
  EXPECT_EQ(start.folder, whole);
  EXPECT_THAT(start.damaged, ElementsAre(damaged));
  EXPECT_THAT(start.said.front(), AllOf(HasSubstr(damaged), HasSubstr("config.json")));
  EXPECT_EQ(config_path_of(options("latest")), whole + "/config.json");
}

TEST_F(RunStartTest, ADamagedOneGetsAnotherNameAndReplacesNothing) {
  for (const char* name : {"damaged-step-000000010", "damaged-step-000000010-2"}) {
    const std::string aside = must(set_aside(save(10)));
    EXPECT_EQ(aside, options().folder + "/" + name);
    EXPECT_TRUE(std::filesystem::exists(aside + "/elixir.json"));
  }
  EXPECT_TRUE(find_start(options()).ok()) << "they are no checkpoints";
  EXPECT_THAT(set_aside(folder_.path("none")).status().message(), HasSubstr("No such file"));
}

TEST_F(RunStartTest, WhatIsNotWholeIsNoCheckpointOfAnotherRun) {
  const std::string whole = save(10), torn = save(20);
  std::filesystem::remove(torn + "/elixir.json");
  EXPECT_THAT(refused(options(), Code::kInvalidArgument), HasSubstr("the newest of step 10"));
  const std::string text = refused(options(whole), Code::kInvalidArgument);
  EXPECT_THAT(text, AllOf(HasSubstr(torn + " exists, and it is not"), HasSubstr("elixir.json"),
                          HasSubstr("move it away"), Not(HasSubstr("--resume latest"))));
}

TEST_F(RunStartTest, WhatResumeNamesWrongIsToldFromWhatItMayHaveMeant) {
  const std::string newest = (save(10), save(20));
  EXPECT_THAT(refused({.resume = options().folder}, Code::kBadInput),
              AllOf(HasSubstr("folder of checkpoints"), HasSubstr(newest),
                    HasSubstr("--checkpoints " + options().folder + " --resume latest")));
  EXPECT_THAT(refused({.resume = "lastest"}, Code::kBadInput), HasSubstr("did you mean 'latest'?"));
}

TEST_F(RunStartTest, TheModelAloneIsNotResumed) {
  std::filesystem::create_directory(folder_.path("exported"));
  const std::string exported =
      save_step(folder_.path("exported"), 10, kConfig, /*optimizer_states=*/false);
  EXPECT_THAT(refused({.resume = exported}, Code::kBadInput),
              AllOf(HasSubstr("the model alone"), HasSubstr("--init " + exported)));
}

TEST_F(RunStartTest, StatesAloneAreNotResumed) {
  const std::string saved = save(10);
  checkpoints::Manifest manifest;
  manifest.step = 10;
  manifest.left_out.emplace();
  manifest.states_alone = true;
  std::ofstream(saved + "/elixir.json") << checkpoints::encode_manifest(manifest);
  EXPECT_THAT(refused({.resume = saved}, Code::kBadInput),
              AllOf(HasSubstr(saved), HasSubstr("it holds states alone, without the model")));
}

TEST_F(RunStartTest, OneByItsNameIsResumedWithoutAFolderToWriteTo) {
  const RunStart start = must(find_start({.resume = save(10)}));
  EXPECT_TRUE(start.resumes);
  EXPECT_THAT(start.said, ElementsAre(HasSubstr(", step 10, as --resume says")));
  EXPECT_THAT(refused({.resume = folder_.path("none")}, Code::kBadInput), HasSubstr("--init"));
  folder_.write("torn/elixir.json", "{}");
  EXPECT_THAT(refused({.resume = folder_.path("torn")}, Code::kBadInput), HasSubstr("--resume"));
}

TEST_F(RunStartTest, AFolderThatCannotBeWrittenToIsAnErrorBeforeAnythingStarts) {
  CheckpointOptions nowhere = options();
  nowhere.folder = folder_.path("no/such/folder");
  EXPECT_THAT(refused(nowhere, Code::kInvalidArgument), HasSubstr("No such file"));
  nowhere.folder = folder_.write("file", "");
  EXPECT_THAT(refused(nowhere, Code::kInvalidArgument), HasSubstr("Not a directory"));
  nowhere.folder = folder_.path("read-only");
  ::mkdir(nowhere.folder.c_str(), 0555);
  ::chmod(folder_.path().c_str(), 0755);
  constexpr uid_t kNobody = 65534;  // root may write everywhere
  const bool was_root = ::geteuid() == 0;
  if (was_root && ::seteuid(kNobody) != 0) GTEST_SKIP() << "root, and cannot be another user";
  EXPECT_THAT(refused(nowhere, Code::kInvalidArgument), HasSubstr("Permission denied"));
  EXPECT_EQ(::seteuid(was_root ? 0 : ::getuid()), 0);
}

TEST_F(RunStartTest, AnotherJobsFolderIsNotTaken) {
  save(10);
  const UniqueFd fd(::open(options().folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const int lock = must(checkpoints::lock_folder(fd.get(), 0));
  const UniqueFd kept(lock);
  EXPECT_THAT(refused(options("latest"), Code::kAlreadyRunning), HasSubstr(options().folder));
}

bool is_free(const std::string& folder) {
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const Result<int> lock = checkpoints::lock_folder(fd.get(), 0);
  if (lock.ok()) ::close(*lock);
  return lock.ok();
}

TEST_F(RunStartTest, TheFolderIsLockedAsLongAsTheStartIsKept) {
  for (const char* resume : {"latest", "none"}) {
    Result<RunStart> start = find_start(options(resume));
    ASSERT_TRUE(start.ok());
    EXPECT_FALSE(is_free(options().folder)) << resume;
    const Result<RunStart> again = find_start(options(resume), /*lock_wait_s=*/0);
    EXPECT_TRUE(again.ok()) << "it is this process's own";
    start = RunStart();
    EXPECT_FALSE(is_free(options().folder));
  }
  EXPECT_TRUE(is_free(options().folder));
}

// The second of two jobs that were begun at once.
TEST_F(RunStartTest, ARankLooksOnlyOnceItsJobsRank0HasTheFolder) {
  LaunchEnvironment first, second;
  first.world_size = second.world_size = 2;
  first.job = second.job = "one";
  second.rank = 1;
  save(10);
  const auto find = [&](const LaunchEnvironment& environment) {
    return find_start(options("latest"), /*lock_wait_s=*/0.05, {}, environment);
  };
  EXPECT_EQ(find(second).status().code(), Code::kTimedOut);
  {
    const RunStart held = must(find(first));
    const RunStart start = must(find(second));
    EXPECT_EQ(start.step, 10u);
    second.job = "another";
    EXPECT_THAT(find(second).status().message(), HasSubstr("rank 0 of this job"));
    second.job = "one";
  }
  EXPECT_EQ(find(second).status().code(), Code::kTimedOut) << "a name that was left there";
}

TEST_F(RunStartTest, WhereValuesAreNotFiniteAnEarlierCheckpointIsNamed) {
  const std::string good = save(10);
  const std::string bad = save_step(folder_.path("checkpoints"), 20, kConfig, true,
                                    checkpoints::Health{.not_finite = 1});
  const Error nan(error(Code::kBadInput, "it has a NaN"));
  for (const char* const end : {"", "/", "//"}) {
    const Status named = with_older_start(nan, {.folder = bad + end, .resumes = true});
    EXPECT_EQ(named.code(), Code::kBadInput);
    EXPECT_EQ(named.message(), "it has a NaN; continue from " + good + ": --resume " + good +
                                   ", with another --checkpoints");
  }
  EXPECT_EQ(with_older_start(nan, {.folder = good, .resumes = true}).message(), "it has a NaN");
  EXPECT_EQ(with_older_start(nan, {.folder = bad}).message(), "it has a NaN");
  const Error other(error(Code::kUnavailable, "elixird is gone"));
  EXPECT_EQ(with_older_start(other, {.folder = bad, .resumes = true}).message(), "elixird is gone");
}

TEST_F(RunStartTest, APipeInACheckpointIsNotWaitedAt) {
  const std::string whole = save(10), piped = save(20);
  for (const char* name : {"/elixir.json", "/config.json"}) {
    std::filesystem::remove(piped + name);
    ASSERT_EQ(::mkfifo((piped + name).c_str(), 0600), 0);
  }
  EXPECT_THAT(refused({.resume = piped}, Code::kBadInput),
              AllOf(HasSubstr("elixir.json"), HasSubstr("ordinary file")));
  EXPECT_EQ(find_start(options("latest"))->folder, whole);
}

TEST_F(RunStartTest, TheModelIsThatOfWhatIsResumedElseOfTheWeights) {
  const std::string weights = folder_.write("weights/config.json", kConfig);
  CheckpointOptions both = options("latest");
  both.init = folder_.path("weights");
  EXPECT_EQ(config_path_of(both), weights);
  const std::string saved = save(10);
  EXPECT_EQ(config_path_of(both), saved + "/config.json");
  EXPECT_EQ(config_path_of({.resume = saved}), saved + "/config.json");
  EXPECT_EQ(config_path_of({}), "");
  EXPECT_EQ(config_path_of({.init = folder_.path("none")}), "");
}

TEST_F(RunStartTest, AnotherModelsFolderIsAnErrorThatNamesWhatDiffers) {
  const std::string saved = save(10);
  EXPECT_TRUE(check_same_model(saved, kTiny).ok());
  planner::TransformerConfig renamed = kTiny;
  renamed.name = "mine";
  renamed.lr = 3;
  EXPECT_TRUE(check_same_model(saved, renamed).ok());
  const auto message = [&](auto change) {
    planner::TransformerConfig other = kTiny;
    change(other);
    return refusal_of(check_same_model(saved, other), Code::kBadInput);
  };
  EXPECT_THAT(message([](auto& other) { other.width = 64; }), HasSubstr("width is 32 and not 64"));
  EXPECT_THAT(message([](auto& other) { other.layers = 3; }), HasSubstr("layers is 2 and not 3"));
  EXPECT_THAT(message([](auto& other) { other.norm_eps = 1e-6; }), HasSubstr("epsilon"));
  EXPECT_THAT(message([](auto& other) { other.family = planner::Family::kOpt; }),
              HasSubstr("family is GPT-2 and not OPT"));
  EXPECT_THAT(message([](auto& other) { other.gelu = true; }), HasSubstr("another type"));
}

TEST_F(RunStartTest, AFolderOfSomebodysIsHeldAgainstWhatIsComputed) {
  const std::string config = planner::config_json(kTiny, ComputeType::kFp32);
  folder_.write("model/config.json", config);
  EXPECT_TRUE(check_same_model(folder_.path("model"), kTiny).ok());
  std::string other = config;
  other.replace(other.find("gelu_new"), 8, "relu");
  folder_.write("model/config.json", other);
  EXPECT_THAT(check_same_model(folder_.path("model"), kTiny).message(),
              HasSubstr("'activation_function'"));
  folder_.write("model/elixir.json", "{}");  // a checkpoint that somebody imported
  EXPECT_THAT(check_same_model(folder_.path("model"), kTiny).message(),
              HasSubstr("'activation_function'"));
  EXPECT_TRUE(check_same_model(folder_.path("without"), kTiny).ok()) << "its tensors are looked at";
  // A model that is planned for, but that nothing here computes.
  folder_.write("phi/config.json",
                R"({"model_type": "phi3", "hidden_size": 64, "num_hidden_layers": 2,
      "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 100})");
  EXPECT_THAT(check_same_model(folder_.path("phi"), kTiny).message(),
              HasSubstr("weights are taken of gpt2"));
}

}  // namespace
}  // namespace elixir
