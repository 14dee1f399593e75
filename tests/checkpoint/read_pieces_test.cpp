
#include <filesystem>

#include "checkpoint/load_plan.h"
#include "tests/checkpoint/small_checkpoint.h"
#include "tests/support/matchers.h"

namespace elixir::checkpoints {
namespace {

namespace fs = std::filesystem;

class ReadPieces : public ::testing::TestWithParam<uint32_t> {
 protected:
  void open() {
    small_.write(folder_);
    stored_ = must(open_stored_folder(folder_.path()));
    plan_ = must(plan_load(stored_, small_.wanted()));
  }
  Status read(StateSink& sink) {
    for (const auto* pieces : {&plan_.params, &plan_.states}) {
      ELIXIR_RETURN_IF_ERROR(read_pieces(stored_, *pieces, GetParam(), &progress_, sink));
    }
    return Status();
  }

  const TemporaryFolder folder_;
  SmallCheckpoint small_;
  StoredFolder stored_;
  LoadPlan plan_;
  ReadProgress progress_;
};

TEST_P(ReadPieces, EveryArrayArrivesOnceAndWhole) {
  open();
  CollectStates sink;
  must(read(sink));
  uint64_t bytes = 0;
  const auto expect = [&](uint32_t parameter, StateKind kind, const std::string& name) {
    EXPECT_EQ(sink.array(parameter, kind), small_.tensor(name).bytes) << name;
    bytes += small_.tensor(name).bytes.size();
  };
  const std::vector<WantedParameter> wanted = small_.wanted();
  for (uint32_t i = 0; i < wanted.size(); ++i) {
    expect(i, StateKind::kParam, wanted[i].name);
    for (StateKind kind : {StateKind::kExpAvg, StateKind::kExpAvgSq, StateKind::kMasterLow}) {
      if (wanted[i].trained) expect(i, kind, "state." + wanted[i].name + "." + state_name(kind));
    }
  }
  EXPECT_EQ(sink.arrays(), 4u + 3 * 3);
  EXPECT_EQ(sink.bytes(), bytes);
  EXPECT_EQ(progress_.bytes, plan_.bytes);
  EXPECT_TRUE(read_pieces(stored_, {}, GetParam(), nullptr, sink).ok()) << "nothing to read";
}

TEST_P(ReadPieces, AFileThatBecameShorterIsNamed) {
  open();
  const std::string name = "optimizer/optimizer-00001-of-00001.safetensors";
  fs::resize_file(folder_.path(name), small_.files[name].size() - 1);
  CollectStates sink;
  expect_refused(read(sink), Code::kBadInput,
                 {name + ": bytes ", "'state.h.0.b.master_low'", "it ended at byte"});
}

// Of a checkpoint that is pruned while it is read, nothing is missing.
TEST_P(ReadPieces, ARemovedFolderIsReadToItsEnd) {
  open();
  for (const auto& [name, bytes] : small_.files) fs::remove(folder_.path(name));
  CollectStates sink;
  EXPECT_TRUE(read(sink).ok());
  EXPECT_EQ(sink.arrays(), 13u);
}

// Cancels the reading with the first range.
class Cancelling : public StateSink {
 public:
  explicit Cancelling(ReadProgress* progress) : progress_(progress) {}
  void take(const LoadRange&, std::span<const std::byte>) override {
    progress_->cancelled = true;
    ++taken;
  }
  std::atomic<int> taken{0};

 private:
  ReadProgress* const progress_;
};

TEST_P(ReadPieces, EndsSoonWhenItIsCancelled) {
  open();
  Cancelling sink(&progress_);
  expect_refused(read(sink), Code::kUnavailable, {folder_.path()});
  EXPECT_LT(progress_.bytes, plan_.bytes);
}

INSTANTIATE_TEST_SUITE_P(Threads, ReadPieces, ::testing::Values(0, 1, 4));

// Files of others may have a tensor at any byte; what takes them reads whole elements.
TEST(ReadPlainPieces, ElementsLieWhereTheyMay) {
  const TemporaryFolder folder;
  for (int odd = 0; odd < 16; ++odd) {
    const std::vector<SmallTensor> tensors = small_tensors(
        {{"odd", "U8", {odd}}, {"a", "F64", {9}}, {"b", "F32", {3}}, {"c", "BF16", {5}}}, 1);
    std::string file = small_file(tensors);
    // A header whose length is no multiple of anything.
    file.insert(8 + static_cast<unsigned char>(file[0]) + 256 * file[1], odd, ' ');
    const size_t length = static_cast<unsigned char>(file[0]) + 256 * file[1] + odd;
    file[0] = static_cast<char>(length & 0xff);
    file[1] = static_cast<char>(length >> 8);
    folder.write("model.safetensors", file);
    const StoredFolder stored = must(open_stored_folder(folder.path()));
    const std::vector<WantedParameter> wanted = {{"c", {5}}, {"b", {3}}, {"a", {9}}};
    const LoadPlan plan = must(plan_load(stored, wanted));
    CollectStates sink;
    ASSERT_TRUE(read_pieces(stored, plan.params, 2, nullptr, sink).ok());
    EXPECT_TRUE(sink.aligned());
    for (uint32_t i = 0; i < 3; ++i) {
      EXPECT_EQ(sink.array(i, StateKind::kParam), tensors[3 - i].bytes) << odd;
    }
  }
}

TEST(Verify, APlainModelHasNothingToCompareWith) {
  const TemporaryFolder folder;
  folder.write("model.safetensors", small_file(SmallCheckpoint().model_1));
  const StoredFolder stored = must(open_stored_folder(folder.path()));
  EXPECT_THAT(verify(stored, 1, nullptr).message(), HasSubstr("no elixir.json to compare"));
}

}  // namespace
}  // namespace elixir::checkpoints
