// elixirctl checkpoint list, verify and estimate, as a program, on folders as elixird writes them.

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/listing.h"
#include "tests/checkpoint/small_checkpoint.h"
#include "tests/ctl/run_program.h"
#include "tests/support/matchers.h"

namespace elixir::ctl {
namespace {

using nlohmann::json;

constexpr char kModelFile[] = "model-00001-of-00002.safetensors";
constexpr char kOptimizerFile[] = "optimizer/optimizer-00001-of-00001.safetensors";

class CheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    checkpoints::SmallCheckpoint small;
    for (const uint64_t step : {20, 100, 40}) {
      small.manifest.step = step;
      small.files[checkpoints::kManifestName] = checkpoints::encode_manifest(small.manifest);
      for (const auto& [name, bytes] : small.files) {
        folder_.write(checkpoints::step_name(step) + "/" + name, bytes);
      }
    }
  }
  std::string runs() const { return folder_.path(); }
  std::string at(uint64_t step) const { return runs() + "/" + checkpoints::step_name(step); }

  Ended ctl(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {ELIXIRCTL, "checkpoint"});
    return run_program(std::move(arguments));
  }

  // One byte of a file, near its end, becomes another.
  static void flip(const std::string& path) {
    const auto size = static_cast<std::streamoff>(std::filesystem::file_size(path));
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(size - 3);
    const auto byte = static_cast<char>(file.get() ^ 1);
    file.seekp(size - 3);
    file.put(byte);
  }

  const TemporaryFolder folder_;
};

TEST_F(CheckpointTest, ListTellsPathStepAndBytesInTheOrderOfSteps) {
  const Ended ended = ctl({"list", runs(), "--json"});
  ASSERT_EQ(ended.code, 0) << ended.err;
  const json all = json::parse(ended.out);
  ASSERT_EQ(all.size(), 3u);
  uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(at(20))) {
    const bool counts = entry.is_regular_file() && entry.path().filename() != "elixir.json";
    bytes += counts ? entry.file_size() : 0;
  }
  const uint64_t steps[] = {20, 40, 100};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(all[i].size(), 7u);
    EXPECT_EQ(all[i]["path"], at(steps[i]));
    EXPECT_EQ(all[i]["step"], steps[i]);
    EXPECT_EQ(all[i]["valid"], true);
    EXPECT_EQ(all[i]["bytes"], bytes);
    EXPECT_EQ(all[i]["why"], "");
    EXPECT_TRUE(all[i]["good"].is_null()) << "nobody has recorded its health";
    EXPECT_EQ(all[i]["states_alone"], false);
  }
  EXPECT_EQ(ended.out.substr(0, 10), "[{\"path\":\"");
}

TEST_F(CheckpointTest, AFolderOfTheManifestsNameHidesNoNeighbour) {
  std::filesystem::rename(at(20), runs() + "/" + checkpoints::kManifestName);
  EXPECT_EQ(json::parse(ctl({"list", runs(), "--json"}).out).size(), 2u);
}

TEST_F(CheckpointTest, TablesAreForPeople) {
  const Ended listed = ctl({"list", runs()});
  EXPECT_THAT(listed.out, HasSubstr("step-000000100"));
  EXPECT_THAT(listed.out, HasSubstr("KiB  yes\n"));
  EXPECT_THAT(ctl({"verify", runs()}).out, HasSubstr("KiB  as written\n"));
  const TemporaryFolder empty;
  EXPECT_THAT(ctl({"list", empty.path()}).out, HasSubstr("no checkpoints"));
  EXPECT_EQ(ctl({"list", empty.path(), "--json"}).out, "[]\n");
  EXPECT_EQ(ctl({"verify", empty.path()}).code, 4) << "nothing was verified";
}

TEST_F(CheckpointTest, TheHealthIsTold) {
  const struct {
    checkpoints::Health health;
    bool good;
    const char* says;
  } cases[] = {{{.not_finite = 0, .finite_step = true}, true, "KiB  yes, good\n"},
               {{.not_finite = 3, .finite_step = true}, false, "KiB  yes, NOT GOOD: the run had"},
               {{.not_finite = 0, .finite_step = false}, false, "KiB  yes, NOT GOOD: the run had"}};
  checkpoints::SmallCheckpoint small;
  for (const auto& one : cases) {
    small.manifest.step = 40;
    small.manifest.health = one.health;
    folder_.write(checkpoints::step_name(40) + "/" + checkpoints::kManifestName,
                  checkpoints::encode_manifest(small.manifest));
    EXPECT_EQ(json::parse(ctl({"list", at(40), "--json"}).out)[0]["good"], one.good);
    EXPECT_THAT(ctl({"list", at(40)}).out, HasSubstr(one.says));
  }
}

TEST_F(CheckpointTest, StatesAloneAreTold) {
  checkpoints::SmallCheckpoint small;
  small.manifest.step = 40;
  small.manifest.left_out.emplace();
  small.manifest.states_alone = true;
  std::erase_if(small.files, [](const auto& file) { return file.first.starts_with("model"); });
  small.list_files();
  std::filesystem::remove_all(at(40));
  small.files[checkpoints::kManifestName] = checkpoints::encode_manifest(small.manifest);
  for (const auto& [name, bytes] : small.files) {
    folder_.write(checkpoints::step_name(40) + "/" + name, bytes);
  }
  EXPECT_EQ(json::parse(ctl({"list", at(40), "--json"}).out)[0]["states_alone"], true);
  EXPECT_THAT(ctl({"list", at(40)}).out, HasSubstr("KiB  yes, states alone\n"));
  EXPECT_THAT(ctl({"verify", at(40)}).out, HasSubstr("KiB  as written, states alone\n"));
}

TEST_F(CheckpointTest, ABitThatIsAnotherIsFoundByReadingAlone) {
  flip(at(40) + "/" + kOptimizerFile);
  EXPECT_EQ(json::parse(ctl({"list", runs(), "--json"}).out)[1]["valid"], true);
  const Ended ended = ctl({"verify", runs(), "--json"});
  EXPECT_EQ(ended.code, 4);
  const json all = json::parse(ended.out);
  EXPECT_EQ(all[0]["valid"], true);
  EXPECT_EQ(all[1]["valid"], false);
  EXPECT_THAT(all[1]["why"].get<std::string>(), HasSubstr(kOptimizerFile));
  EXPECT_EQ(all[2]["valid"], true);
  // Each alone.
  EXPECT_EQ(ctl({"verify", at(40)}).code, 4);
  EXPECT_EQ(ctl({"verify", at(100)}).code, 0);
}

TEST_F(CheckpointTest, OneIsACheckpointWhateverItsNameAndWhetherItIsWhole) {
  const json whole = json::parse(ctl({"list", at(40), "--json"}).out);
  std::filesystem::rename(at(40), runs() + "/mine");
  for (const char* const end : {"", "/", "//"}) {
    const Ended ended = ctl({"verify", runs() + "/mine" + end, "--json"});
    EXPECT_EQ(ended.code, 0) << ended.err;
    const json all = json::parse(ended.out);
    ASSERT_EQ(all.size(), 1u);
    EXPECT_EQ(all[0]["step"], 40);
    EXPECT_EQ(all[0]["path"], runs() + "/mine");
  }
  // What its manifest says, and what is wrong.
  std::filesystem::resize_file(runs() + "/mine/" + kModelFile, 100);
  for (const char* const command : {"list", "verify"}) {
    const Ended ended = ctl({command, runs() + "/mine", "--json"});
    EXPECT_EQ(ended.code, command == std::string("list") ? 0 : 4) << ended.err;
    const json found = json::parse(ended.out).at(0);
    EXPECT_EQ(found["valid"], false);
    EXPECT_EQ(found["step"], 40);
    EXPECT_EQ(found["bytes"], whole[0]["bytes"]);
    EXPECT_THAT(found["why"].get<std::string>(), HasSubstr(kModelFile));
  }
  EXPECT_THAT(ctl({"list", runs() + "/mine"}).out, HasSubstr("NO: "));
  // A folder that is named as one and is none.
  std::filesystem::create_directory(at(7));
  const Ended none = ctl({"verify", at(7), "--json"});
  EXPECT_EQ(none.code, 4);
  EXPECT_EQ(json::parse(none.out)[0]["valid"], false);
  EXPECT_NE(json::parse(none.out)[0]["why"], "");
}

TEST_F(CheckpointTest, EstimateTakesAModelAndADisk) {
  const Ended ended = ctl({"estimate", "--model", "gpt2-small", "--dtype", "fp16", "--disk-gb-s",
                           "2", "--shadow", "0", "--step-s", "0.5", "--json"});
  ASSERT_EQ(ended.code, 0) << ended.err;
  const json found = json::parse(ended.out);
  EXPECT_EQ(found["bytes"], 14u * 124'439'808);
  EXPECT_NEAR(found["stall_s"].get<double>(), 14 * 0.124439808 / 2 - 0.5, 1e-6);
  EXPECT_THAT(ctl({"estimate", "--params", "7B", "--disk-gb-s", "1"}).out, HasSubstr("78.23 GiB"));
}

TEST_F(CheckpointTest, ErrorsSayWhatMendsThem) {
  struct {
    std::vector<std::string> arguments;
    int code;
    const char* text;
  } const cases[] = {
      {{}, 2, "elixirctl checkpoint list"},
      {{"lst"}, 2, "list"},
      {{"list"}, 2, "folder"},
      {{"list", runs() + "/none"}, 4, "is not a folder"},
      {{"verify", at(40) + "/" + kModelFile}, 4, "is not a folder"},
      {{"verify", runs(), "--threads", "65"}, 2, "--threads"},
      {{"estimate"}, 2, "give exactly one"},
      {{"estimate", "--params", "1e9", "--disk-gb-s", "0"}, 2, "--disk-gb-s"},
      {{"estimate", "--params", "1e9", "--shadow", "much"}, 2, "--shadow"},
      {{"export", at(40)}, 2, "--torch FILE"},
      {{"import", "--torch", "a"}, 2, "--model"},
  };
  for (const auto& one : cases) {
    const Ended ended = ctl(one.arguments);
    EXPECT_EQ(ended.code, one.code) << one.text;
    EXPECT_THAT(ended.err, HasSubstr(one.text));
    EXPECT_THAT(ended.err, Not(HasSubstr("terminate called")));
  }
}

}  // namespace
}  // namespace elixir::ctl
