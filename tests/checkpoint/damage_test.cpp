// Bits that flip and files that end early, at random places of a checkpoint: each is found, and
// what is said of it names the file and the tensor.

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <random>

#include "base/fd.h"
#include "checkpoint/load_plan.h"
#include "tests/checkpoint/small_checkpoint.h"
#include "tests/support/every_case.h"
#include "tests/support/matchers.h"

namespace elixir::checkpoints {
namespace {

namespace fs = std::filesystem;

const int kTruncations = every_case() ? 1'000 : 200;
const int kFlips = 10 * kTruncations;

class DamagedCheckpoint : public ::testing::Test {
 protected:
  DamagedCheckpoint() {
    small_.write(folder_);
    files_ = small_.files;
    files_[kManifestName] = encode_manifest(small_.manifest);
    for (const auto& [name, bytes] : files_) n_bytes_ += bytes.size();
    whole_ = must(open_stored_folder(folder_.path()));
    for (const Status& status : {check(), load(1)}) EXPECT_TRUE(status.ok()) << status.message();
  }

  // A byte of all there are, each as likely.
  std::pair<std::string, size_t> random_byte() {
    size_t at = std::uniform_int_distribution<size_t>(0, n_bytes_ - 1)(random_);
    for (const auto& [name, bytes] : files_) {
      if (at < bytes.size()) return {name, at};
      at -= bytes.size();
    }
    ELIXIR_CHECK(false, "beyond all files");
  }
  void overwrite(const std::string& name, size_t at, char byte) const {
    const UniqueFd file(::open(folder_.path(name).c_str(), O_WRONLY));
    ASSERT_EQ(::pwrite(file.get(), &byte, 1, static_cast<off_t>(at)), 1);
  }
  // The tensor that has the byte; "" where none has.
  std::string tensor_at(const std::string& name, size_t at) const {
    for (const auto* tensors : {&whole_.model, &whole_.optimizer}) {
      for (const StoredTensor& tensor : *tensors) {
        const uint64_t end = tensor.offset + (tensor.end - tensor.begin);
        const bool here = at >= tensor.offset && at < end;
        if (here && whole_.files[tensor.file].name == name) return tensor.name;
      }
    }
    return "";
  }
  // Opens it and compares it.
  Status check() const {
    const Result<StoredFolder> stored = open_stored_folder(folder_.path());
    return stored.ok() ? verify(*stored, 1, nullptr) : stored.status();
  }
  // Opens it and reads what a model wants.
  Status load(uint32_t threads) const {
    const Result<StoredFolder> stored = open_stored_folder(folder_.path());
    if (!stored.ok()) return stored.status();
    const Result<LoadPlan> plan = plan_load(*stored, small_.wanted());
    if (!plan.ok()) return plan.status();
    CollectStates sink;
    ELIXIR_RETURN_IF_ERROR(read_pieces(*stored, plan->params, threads, nullptr, sink));
    return read_pieces(*stored, plan->states, threads, nullptr, sink);
  }
  void expect_refused(const Status& status, const std::string& name,
                      const std::string& tensor) const {
    ASSERT_EQ(status.code(), Code::kBadInput);
    ASSERT_THAT(status.message(), HasSubstr(folder_.path() + "/" + name + ": "));
    if (!tensor.empty()) {
      ASSERT_THAT(status.message(), HasSubstr("'" + tensor + "'"));
    }
  }

  const TemporaryFolder folder_;
  const SmallCheckpoint small_;
  std::map<std::string, std::string> files_;
  size_t n_bytes_ = 0;
  StoredFolder whole_;
  std::mt19937 random_{15};
};

// Loading finds what lies in the pieces that it reads, headers among them, without verify().
TEST_F(DamagedCheckpoint, EveryFlippedBitIsFoundByAComparisonAndByALoad) {
  int in_tensors = 0, loaded = 0;
  for (int i = 0; i < kFlips; ++i) {
    const auto [name, at] = random_byte();
    const char byte = files_[name][at];
    overwrite(name, at, static_cast<char>(byte ^ (1 << random_() % 8)));
    const std::string tensor = tensor_at(name, at);
    in_tensors += !tensor.empty();
    SCOPED_TRACE(fmt::format("byte {} of {}", at, name));
    expect_refused(check(), name, tensor);
    const bool read = name.ends_with(".safetensors") && tensor != "steps";
    if (i % 5 == 0 && read && !tensor.ends_with(".step")) {
      ++loaded;
      const Status status = load(/*threads=*/i % 3);
      EXPECT_EQ(status.code(), Code::kBadInput);
      EXPECT_THAT(status.message(), HasSubstr(tensor.empty() ? "" : "'" + tensor + "'"));
    }
    if (HasFailure()) return;
    overwrite(name, at, byte);
  }
  EXPECT_GT(in_tensors, kFlips / 4);
  EXPECT_GT(loaded, kFlips / 20);
  EXPECT_TRUE(check().ok());
}

TEST_F(DamagedCheckpoint, EveryTruncationIsFound) {
  for (int i = 0; i < kTruncations; ++i) {
    const auto [name, length] = random_byte();
    fs::resize_file(folder_.path(name), length);
    // The last tensor is cut in any case; a header says which is the first of those that are.
    const bool has_tensors = !tensor_at(name, files_[name].size() - 1).empty();
    const bool has_header = has_tensors && !tensor_at(name, length).empty();
    const Status status = check();
    SCOPED_TRACE(fmt::format("{} bytes of {}", length, name));
    expect_refused(status, name, "");
    if (has_header) {
      EXPECT_THAT(status.message(), HasSubstr("tensor '"));
    }
    if (HasFailure()) return;
    folder_.write(name, files_[name]);
  }
  EXPECT_TRUE(check().ok());
}

// The control: it is the hashes that find a bit of a tensor.
TEST_F(DamagedCheckpoint, WithoutAManifestABitOfATensorIsNotSeen) {
  fs::remove(folder_.path(kManifestName));
  folder_.write("model.safetensors", small_file(small_.model_1));
  const StoredFolder plain = must(open_stored_folder(folder_.path()));
  const size_t at = plain.model[1].offset;
  overwrite("model.safetensors", at, static_cast<char>(small_.model_1[1].bytes[0] ^ 1));
  const std::vector<WantedParameter> wanted = {{"h.0.w", {4, 30}}};
  const LoadPlan plan = must(plan_load(plain, wanted, {.allow_rest = true}));
  CollectStates sink;
  EXPECT_TRUE(read_pieces(plain, plan.params, 1, nullptr, sink).ok());
  EXPECT_NE(sink.array(0, StateKind::kParam), small_.model_1[1].bytes);
}

}  // namespace
}  // namespace elixir::checkpoints
