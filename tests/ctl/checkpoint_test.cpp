// elixirctl checkpoint list, verify and estimate, as a program, on folders as elixird writes them.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/fd.h"
#include "base/subprocess.h"
#include "checkpoint/file_plan.h"
#include "checkpoint/folder_calls.h"
#include "checkpoint/listing.h"
#include "checkpoint/new_folder.h"
#include "tests/support/temporary_folder.h"

namespace elixir::ctl {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kNumel = 96;
constexpr char kModelFile[] = "model-00001-of-00001.safetensors";
constexpr char kOptimizerFile[] = "optimizer/optimizer-00001-of-00001.safetensors";

// A checkpoint of one parameter, whose bytes are numbers that count up.
void write_checkpoint(const std::string& folder, const std::string& name, uint64_t step) {
  const checkpoints::SavedParameter parameter{.name = "weight", .shape = {8, 12}, .numel = kNumel};
  const Result<checkpoints::FilePlan> plan =
      checkpoints::plan_files({&parameter, 1}, {}, {.type = ComputeType::kBf16});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const UniqueFd parent(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  Result<checkpoints::NewFolder> output =
      checkpoints::NewFolder::create(parent.get(), name, step, "test");
  ASSERT_TRUE(output.ok()) << output.status().message();
  checkpoints::Manifest manifest{.step = step, .updates = step, .type = ComputeType::kBf16};
  manifest.groups = {{.lr = 0.5, .weight_decay = 0, .hyper = {0.9, 0.999, 1e-8}}};
  for (const checkpoints::FilePlan::File& file : plan->files) {
    const Result<int> fd = output->create_file(file.name, file.bytes);
    ASSERT_TRUE(fd.ok()) << fd.status().message();
    std::string bytes = file.header;
    while (bytes.size() < file.bytes) bytes.push_back(static_cast<char>(bytes.size()));
    const auto span = std::as_bytes(std::span(bytes));
    ASSERT_TRUE(checkpoints::write_all(*fd, span, 0).ok());
    manifest.files.push_back({file.name, file.bytes, {{file.bytes, checkpoints::xxh3_of(span)}}});
  }
  const auto index = std::as_bytes(std::span(plan->index));
  ASSERT_TRUE(output->write_file("model.safetensors.index.json", index).ok());
  const Status published = output->publish(manifest);
  ASSERT_TRUE(published.ok()) << published.message();
}

class CheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const uint64_t step : {20, 100, 40}) {
      write_checkpoint(runs(), checkpoints::step_name(step), step);
    }
  }
  std::string runs() const { return folder_.path(); }
  std::string at(uint64_t step) const { return runs() + "/" + checkpoints::step_name(step); }

  struct Ended {
    int code = -1;
    std::string out, err;
  };
  Ended ctl(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {ELIXIRCTL, "checkpoint"});
    const TemporaryFolder outputs;
    SpawnOptions options;
    options.argv = std::move(arguments);
    const auto file = [&](const char* name) {
      return UniqueFd(::open(outputs.path(name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    };
    const UniqueFd out = file("out"), err = file("err");
    options.stdout_fd = out.get();
    options.stderr_fd = err.get();
    const Result<pid_t> child = spawn(options);
    EXPECT_TRUE(child.ok());
    int status = 0;
    ::waitpid(*child, &status, 0);
    ::lseek(out.get(), 0, SEEK_SET);
    ::lseek(err.get(), 0, SEEK_SET);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_all(out.get()),
            read_all(err.get())};
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
    EXPECT_EQ(all[i].size(), 5u);
    EXPECT_EQ(all[i]["path"], at(steps[i]));
    EXPECT_EQ(all[i]["step"], steps[i]);
    EXPECT_EQ(all[i]["valid"], true);
    EXPECT_EQ(all[i]["bytes"], bytes);
    EXPECT_EQ(all[i]["why"], "");
  }
  EXPECT_EQ(ended.out.substr(0, 10), "[{\"path\":\"");
}

TEST_F(CheckpointTest, TablesAreForPeople) {
  const Ended listed = ctl({"list", runs()});
  EXPECT_THAT(listed.out, HasSubstr("step-000000100"));
  EXPECT_THAT(listed.out, HasSubstr("KiB  yes\n"));
  EXPECT_THAT(ctl({"verify", runs()}).out, HasSubstr("KiB  as written\n"));
  const TemporaryFolder empty;
  EXPECT_THAT(ctl({"list", empty.path()}).out, HasSubstr("no checkpoints"));
  EXPECT_EQ(ctl({"list", empty.path(), "--json"}).out, "[]\n");
}

TEST_F(CheckpointTest, WhatIsCutShortIsNotValid) {
  std::filesystem::resize_file(at(40) + "/" + kModelFile, 100);
  std::filesystem::remove(at(100) + "/elixir.json");
  const Ended ended = ctl({"list", runs(), "--json"});
  EXPECT_EQ(ended.code, 0);
  const json all = json::parse(ended.out);
  EXPECT_EQ(all[0]["valid"], true);
  for (const size_t broken : {1u, 2u}) {
    EXPECT_EQ(all[broken]["valid"], false);
    EXPECT_NE(all[broken]["why"], "");
  }
  EXPECT_THAT(ctl({"list", runs()}).out, HasSubstr("NO: "));
  EXPECT_EQ(ctl({"verify", runs()}).code, 4);
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

TEST_F(CheckpointTest, OneIsACheckpointWhateverItsName) {
  std::filesystem::rename(at(40), runs() + "/mine");
  for (const char* const end : {"", "/", "//"}) {
    const Ended ended = ctl({"verify", runs() + "/mine" + end, "--json"});
    EXPECT_EQ(ended.code, 0) << ended.err;
    const json all = json::parse(ended.out);
    ASSERT_EQ(all.size(), 1u);
    EXPECT_EQ(all[0]["step"], 40);
    EXPECT_EQ(all[0]["path"], runs() + "/mine");
  }
  // A folder that is named as one and is none.
  std::filesystem::create_directory(at(7));
  const Ended none = ctl({"verify", at(7), "--json"});
  EXPECT_EQ(none.code, 4);
  EXPECT_EQ(json::parse(none.out)[0]["valid"], false);
  EXPECT_NE(json::parse(none.out)[0]["why"], "");
}

// Of one that is damaged both tell what its manifest says, and what is wrong.
TEST_F(CheckpointTest, OneThatIsDamagedHasItsStepBytesAndReason) {
  const json whole = json::parse(ctl({"list", at(40), "--json"}).out);
  std::filesystem::rename(at(40), runs() + "/mine");
  std::filesystem::rename(at(20), at(21));
  std::filesystem::resize_file(runs() + "/mine/" + kModelFile, 100);
  for (const char* const command : {"list", "verify"}) {
    const Ended ended = ctl({command, runs() + "/mine", "--json"});
    EXPECT_EQ(ended.code, command == std::string("list") ? 0 : 4) << ended.err;
    const json found = json::parse(ended.out).at(0);
    EXPECT_EQ(found["valid"], false);
    EXPECT_EQ(found["step"], 40);
    EXPECT_EQ(found["bytes"], whole[0]["bytes"]);
    EXPECT_THAT(found["why"].get<std::string>(), HasSubstr(kModelFile));
    for (const std::string& path : {at(21), runs()}) {
      const json renamed = json::parse(ctl({command, path, "--json"}).out).at(0);
      EXPECT_EQ(renamed["step"], 21);
      EXPECT_EQ(renamed["bytes"], whole[0]["bytes"]);
      EXPECT_THAT(renamed["why"].get<std::string>(), HasSubstr("call it step-000000020"));
    }
  }
}

TEST_F(CheckpointTest, Estimate) {
  const Ended ended = ctl({"estimate", "--params", "1e9", "--disk-gb-s", "2", "--shadow", "3GB",
                           "--step-s", "1.5", "--json"});
  ASSERT_EQ(ended.code, 0) << ended.err;
  const json found = json::parse(ended.out);
  EXPECT_EQ(found["bytes"], 12'000'000'000);
  EXPECT_EQ(found["stall_s"], 3.0);
  EXPECT_EQ(
      json::parse(
          ctl({"estimate", "--model", "gpt2-small", "--dtype", "fp16", "--json"}).out)["bytes"],
      14u * 124'439'808);
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
      {{"list", runs() + "/none"}, 4, "is no folder"},
      {{"verify", at(40) + "/" + kModelFile}, 4, "is no folder"},
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
