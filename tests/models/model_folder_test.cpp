#include "models/model_folder.h"

#include <filesystem>
#include <string>
#include <vector>

#include "base/throw_error.h"
#include "planner/models/config_json.h"
#include "tests/models/saved_steps.h"
#include "tests/models/tiny_gpt2.h"
#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"

namespace elixir {
namespace {

class ModelFolderTest : public ::testing::Test {
 protected:
  std::string save(uint64_t step) const {
    return save_step(folder_.path(), step,
                     planner::config_json(tiny_gpt2_config(), ComputeType::kFp32));
  }
  // What was used, of which what `goes` says went meanwhile.
  std::vector<std::string> use(bool goes) const {
    std::vector<std::string> used;
    try {
      use_model_folder(folder_.path(), [&](const std::string& chosen, int tries) {
        used.push_back(chosen);
        EXPECT_EQ(static_cast<size_t>(tries), used.size());
        if (goes) std::filesystem::remove_all(chosen);
        throw Error(error(Code::kBadInput, "it cannot be read"));
      });
    } catch (const Error& failure) {
      EXPECT_THAT(failure.what(), HasSubstr("it cannot be read"));
    }
    return used;
  }

  const TemporaryFolder folder_;
};

TEST_F(ModelFolderTest, TheNewestIsLookedForAgainWhereItWentMeanwhile) {
  const std::string oldest = save(10), older = save(20), newer = save(30), newest = save(40);
  EXPECT_THAT(use(/*goes=*/false), ElementsAre(newest)) << "that it is there is no reason";
  EXPECT_THAT(use(/*goes=*/true), ElementsAre(newest, newer, older)) << "not for ever";
  EXPECT_EQ(*model_folder(folder_.path()), oldest);
}

TEST_F(ModelFolderTest, AFolderOfTheConfigsNameHidesNoCheckpoint) {
  const std::string saved = save(10);
  std::filesystem::create_directory(folder_.path("config.json"));
  EXPECT_EQ(*model_folder(folder_.path()), saved);
}

TEST_F(ModelFolderTest, WhatIsNamedItselfIsNotReplaced) {
  const std::string named = save(10);
  int tries = 0;
  const auto gone = [&](const std::string& chosen, int) {
    ++tries;
    EXPECT_EQ(chosen, named);
    std::filesystem::remove_all(chosen);
    throw Error(error(Code::kBadInput, "gone"));
  };
  EXPECT_THROW(use_model_folder(named, gone), Error);
  EXPECT_EQ(tries, 1);
}

}  // namespace
}  // namespace elixir
