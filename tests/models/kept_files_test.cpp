#include "models/kept_files.h"

#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint/safetensors.h"
#include "planner/models/config_json.h"
#include "tests/models/tiny_gpt2.h"
#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"

namespace elixir {
namespace {

using nlohmann::json;

TrainOptions tiny_options() {
  TrainOptions options;
  options.config = tiny_gpt2_config();
  options.run.dtype = ComputeType::kBf16;
  return options;
}

class KeptFilesTest : public ::testing::Test {
 protected:
  KeptFilesTest() {
    const checkpoints::TensorEntry weight = {
        "w", &checkpoints::dtype_of(ComputeType::kFp32), {1}, 0, 4};
    folder_.write("model.safetensors", checkpoints::encode_header({&weight, 1}) + "1234");
  }
  std::map<std::string, std::string> kept() const {
    const auto files = must(files_to_keep(folder_.path(), tiny_options()));
    return {files.begin(), files.end()};
  }

  const TemporaryFolder folder_;
};

TEST(KeptFiles, ARunThatBeginsAnewWritesItsConfig) {
  const auto files = must(files_to_keep("", tiny_options()));
  EXPECT_THAT(files, ElementsAre(Pair("config.json", planner::config_json(tiny_gpt2_config(),
                                                                          ComputeType::kBf16))));
}

TEST_F(KeptFilesTest, WhatTheFolderHasForItsUsersStaysWithTheRunsType) {
  folder_.write("config.json", R"({"model_type": "gpt2", "torch_dtype": "float32", "mine": 1})");
  folder_.write("tokenizer.json", "words");
  folder_.write("merges.txt", "a b");
  folder_.write("README.md", "not kept");
  auto files = kept();
  EXPECT_EQ(json::parse(files["config.json"]),
            json::parse(R"({"model_type": "gpt2", "torch_dtype": "bfloat16", "mine": 1})"));
  EXPECT_EQ(files["tokenizer.json"], "words");
  EXPECT_EQ(files["merges.txt"], "a b");
  EXPECT_EQ(files.size(), 3u);
}

TEST_F(KeptFilesTest, WithoutAConfigItIsWritten) {
  EXPECT_EQ(kept()["config.json"], planner::config_json(tiny_gpt2_config(), ComputeType::kBf16));
}

TEST_F(KeptFilesTest, WhatIsTooLongIsLeftOut) {
  folder_.write("merges.txt", std::string(size_t{65} << 20, 'x'));
  folder_.write("vocab.json", "{}");
  const auto files = kept();
  EXPECT_EQ(files.count("merges.txt"), 0u);
  EXPECT_EQ(files.count("vocab.json"), 1u);
}

TEST_F(KeptFilesTest, ALinkIsNotFollowed) {
  std::filesystem::create_symlink("/etc/passwd", folder_.path("tokenizer.json"));
  EXPECT_EQ(kept().count("tokenizer.json"), 0u);
}

TEST(KeptFiles, OfTheHubsCacheLinksAreFollowed) {
  const TemporaryFolder cache;
  const checkpoints::TensorEntry weight = {
      "w", &checkpoints::dtype_of(ComputeType::kFp32), {1}, 0, 4};
  cache.write("models--a--b/blobs/0", checkpoints::encode_header({&weight, 1}) + "1234");
  cache.write("models--a--b/blobs/1", "words");
  cache.write("models--a--b/blobs/2", R"({"mine": 1})");
  const std::string snapshot = cache.path("models--a--b/snapshots/h");
  std::filesystem::create_directories(snapshot);
  int blob = 0;
  for (const char* name : {"model.safetensors", "tokenizer.json", "config.json"}) {
    std::filesystem::create_symlink("../../blobs/" + std::to_string(blob++), snapshot + "/" + name);
  }
  std::filesystem::create_symlink("/etc/passwd", snapshot + "/vocab.json");
  const auto files = must(files_to_keep(snapshot, tiny_options()));
  const std::map<std::string, std::string> kept(files.begin(), files.end());
  EXPECT_EQ(kept.at("tokenizer.json"), "words");
  EXPECT_THAT(kept.at("config.json"), HasSubstr("mine"));
  EXPECT_EQ(kept.count("vocab.json"), 0u);
}

TEST(KeptFiles, AFolderThatHoldsNoModelIsAnError) {
  const TemporaryFolder folder;
  EXPECT_EQ(files_to_keep(folder.path(), tiny_options()).status().code(), Code::kBadInput);
}

}  // namespace
}  // namespace elixir
