#include "checkpoint/stored_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "tests/checkpoint/small_checkpoint.h"
#include "tests/support/matchers.h"

namespace elixir::checkpoints {
namespace {

namespace fs = std::filesystem;

std::string refusal(const std::string& path) {
  const std::string message = refusal_of(open_stored_folder(path).status(), Code::kBadInput);
  EXPECT_THAT(message, HasSubstr(path));
  return message;
}

std::vector<std::string> names_of(const std::vector<StoredTensor>& tensors) {
  std::vector<std::string> names;
  for (const StoredTensor& tensor : tensors) names.push_back(tensor.name);
  return names;
}

// A written checkpoint that a test changes.
class StoredCheckpoint : public ::testing::Test {
 protected:
  std::string path(std::string_view name) const { return folder_.path(name); }
  // Writes, damages, and says how it is refused.
  std::string refused(const std::function<void()>& damage) {
    small_.seal();
    small_.write(folder_);
    damage();
    return refusal(folder_.path());
  }

  static constexpr const char* kModel = "model-00001-of-00002.safetensors";
  const TemporaryFolder folder_;
  SmallCheckpoint small_;
};

TEST_F(StoredCheckpoint, HoldsTheTensorsOfItsFiles) {
  small_.write(folder_);
  folder_.write("model-stranger.safetensors", "no file of the checkpoint's");
  const StoredFolder stored = must(open_stored_folder(folder_.path()));
  EXPECT_EQ(stored.manifest, small_.manifest);
  EXPECT_THAT(names_of(stored.model),
              ElementsAre("wte.weight", "h.0.w", "h.0.b", "steps", "frozen.w"));
  EXPECT_EQ(stored.optimizer.size(), 12u);
  EXPECT_EQ(stored.files.size(), 3u);
  for (const auto* tensors : {&stored.model, &stored.optimizer}) {
    for (const StoredTensor& tensor : *tensors) {
      const StoredFile& file = stored.files[tensor.file];
      EXPECT_EQ(small_.files[file.name].substr(tensor.offset, tensor.end - tensor.begin),
                small_.tensor(tensor.name).bytes);
      EXPECT_FALSE(file.pieces.empty());
    }
  }
  EXPECT_EQ(stored.place_of(stored.model[1]), folder_.path() + "/" + kModel + ": tensor 'h.0.w'");
}

// elixird has the folder from a trainer, under a path that may be another's.
TEST_F(StoredCheckpoint, IsReadThroughItsDescriptorAlone) {
  small_.write(folder_);
  const UniqueFd open_folder(::open(folder_.path().c_str(), O_RDONLY | O_DIRECTORY));
  const fs::path elsewhere = folder_.path() + ".moved";
  fs::rename(folder_.path(), elsewhere);
  const StoredFolder stored = must(open_stored_folder(open_folder.get(), "the job's folder"));
  const std::string config = must(read_stored_file(stored, "config.json"));
  EXPECT_EQ(config, small_.files["config.json"]);
  fs::rename(elsewhere, folder_.path());
}

TEST_F(StoredCheckpoint, AnInvalidManifestIsNoPlainModel) {
  EXPECT_THAT(refused([&] {
                folder_.write("model.safetensors", small_file(small_.model_1));
                folder_.write(kManifestName, "{}");
              }),
              HasSubstr("/elixir.json: not a checkpoint's manifest"));
  EXPECT_THAT(refused([&] { folder_.write(kManifestName, ""); }), HasSubstr("/elixir.json: "));
}

TEST_F(StoredCheckpoint, FilesMustBeThereAndOfTheSizeThatTheManifestSays) {
  EXPECT_THAT(refused([&] { fs::remove(path("user/rank-0.bin")); }),
              HasSubstr("/user/rank-0.bin: it is missing, but elixir.json lists it"));
  EXPECT_THAT(refused([&] { fs::remove_all(path("optimizer")); }),
              HasSubstr("/optimizer/optimizer-00001-of-00001.safetensors: it is missing"));
  EXPECT_THAT(refused([&] { fs::resize_file(path("config.json"), 3); }),
              HasSubstr("/config.json: it has 3 bytes, where elixir.json says 22"));
  EXPECT_THAT(refused([&] { fs::resize_file(path(kModel), small_.files[kModel].size() - 1); }),
              AllOf(HasSubstr(kModel), HasSubstr("where elixir.json says"),
                    HasSubstr("tensor 'h.0.b': its bytes")));
  EXPECT_THAT(refused([&] { fs::resize_file(path(kModel), 5); }), HasSubstr("it has 5 bytes"));
  // The manifest is that of another checkpoint.
  EXPECT_THAT(refused([&] {
                SmallCheckpoint other;
                other.model_1.pop_back();
                other.seal();
                folder_.write(kManifestName, encode_manifest(other.manifest));
              }),
              AllOf(HasSubstr(kModel), HasSubstr("where elixir.json says")));
}

TEST_F(StoredCheckpoint, LinksAndOtherThingsAreNotFollowed) {
  const auto replace_by_link = [&](const std::string& name) {
    fs::rename(path(name), path("real"));
    fs::create_symlink(path("real"), path(name));
  };
  for (const std::string name : {kModel, "elixir.json", "config.json"}) {
    EXPECT_THAT(refused([&] { replace_by_link(name); }),
                AllOf(HasSubstr("/" + name + ": a symbolic link"), HasSubstr("cp -rL")));
    fs::remove(path(name));
    fs::remove(path("real"));
  }
  EXPECT_THAT(refused([&] { replace_by_link("optimizer"); }),
              HasSubstr("optimizer-00001-of-00001.safetensors: a symbolic link"));
  fs::remove(path("optimizer"));
  EXPECT_THAT(refused([&] {
                fs::remove(path(kModel));
                ASSERT_EQ(::mkfifo(path(kModel).c_str(), 0600), 0);
              }),
              HasSubstr("not an ordinary file"));
  fs::remove(path(kModel));
  EXPECT_THAT(refused([&] {
                fs::remove(path(kModel));
                fs::create_directory(path(kModel));
              }),
              HasSubstr("not an ordinary file"));
}

TEST_F(StoredCheckpoint, ANameInTwoFilesIsRefused) {
  small_.model_2[0] = small_.model_1[1];
  EXPECT_THAT(refused([] {}), AllOf(HasSubstr("tensor 'h.0.w': it is also in model-0000"),
                                    HasSubstr("of-00002.safetensors")));
}

TEST_F(StoredCheckpoint, SmallFilesAreReadWithTheirHashes) {
  small_.write(folder_);
  const StoredFolder stored = must(open_stored_folder(folder_.path()));
  const auto read = [&](const std::string& name, uint64_t most = 1000) {
    const Result<std::string> text = read_stored_file(stored, name, most);
    return text.ok() ? *text : text.status().message();
  };
  EXPECT_EQ(read("user/rank-0.bin"), std::string(300, 'a'));  // several pieces
  EXPECT_EQ(read("user/rank-1.bin"), "");
  folder_.write("later.txt", "not in the manifest");
  EXPECT_EQ(read("later.txt"), "not in the manifest");
  EXPECT_THAT(read("user/rank-2.bin"), HasSubstr("/user/rank-2.bin: this file does not exist"));
  EXPECT_THAT(read("user/rank-0.bin", 299), HasSubstr("300 bytes, where 299 are the most"));
  EXPECT_THAT(read("../secret"), HasSubstr("'../secret' is not the name of a file in it"));
  folder_.write("user/rank-0.bin", std::string(299, 'a') + "b");
  EXPECT_THAT(read("user/rank-0.bin"), HasSubstr("/user/rank-0.bin: damaged"));
  folder_.write("user/rank-0.bin", std::string(280, 'a'));  // whole pieces
  EXPECT_THAT(read("user/rank-0.bin"), HasSubstr("/user/rank-0.bin: damaged"));
  folder_.write("user/rank-0.bin", std::string(301, 'a'));
  EXPECT_THAT(read("user/rank-0.bin"), HasSubstr("/user/rank-0.bin: damaged"));
}

// transformers, too, takes the one file where a save of before has left its shards.
TEST(PlainFolder, OneFileOrShardsWithAnIndex) {
  const SmallCheckpoint small;
  const TemporaryFolder folder;
  folder.write("model.safetensors", small_file(small.model_1));
  folder.write(kIndexName, R"({"weight_map":{"frozen.w":"gone.safetensors"}})");
  const StoredFolder one = must(open_stored_folder(folder.path()));
  EXPECT_FALSE(one.manifest.has_value());
  EXPECT_THAT(names_of(one.model), ElementsAre("wte.weight", "h.0.w", "h.0.b"));

  fs::remove(folder.path("model.safetensors"));
  folder.write("a.safetensors", small_file(small.model_1));
  folder.write("b.safetensors", small_file(small.model_2));
  folder.write(kIndexName,
               R"({"weight_map":{"frozen.w":"b.safetensors","h.0.w":"a.safetensors"}})");
  const StoredFolder shards = must(open_stored_folder(folder.path()));
  EXPECT_THAT(names_of(shards.model), ElementsAre("h.0.w", "frozen.w"));
}

TEST(PlainFolder, SaysWhatIsWrong) {
  const SmallCheckpoint small;
  const TemporaryFolder folder;
  EXPECT_THAT(refusal(folder.path("none")), HasSubstr("No such file"));
  EXPECT_THAT(refusal(folder.write("file", "x")), HasSubstr("Not a directory"));
  EXPECT_THAT(refusal(folder.path()), HasSubstr("no model.safetensors, no "
                                                "model.safetensors.index.json and no elixir.json"));
  folder.write("pytorch_model.bin", "x");
  EXPECT_THAT(refusal(folder.path()), HasSubstr("pytorch_model.bin is a pickle"));
  fs::create_directory(folder.path("step-000000010"));
  EXPECT_THAT(refusal(folder.path()),
              HasSubstr("name one, such as " + folder.path() + "/step-000000010"));

  folder.write("model.safetensors", small_file(small.model_1).substr(0, 100));
  EXPECT_THAT(refusal(folder.path()), HasSubstr("/model.safetensors: not a safetensors file, or"));
  folder.write("model.safetensors", small_file({}));
  EXPECT_THAT(refusal(folder.path()), HasSubstr("it holds no tensors"));

  fs::remove(folder.path("model.safetensors"));
  const auto index = [&](const std::string& text) {
    folder.write(kIndexName, text);
    return refusal(folder.path());
  };
  folder.write("a.safetensors", small_file(small.model_1));
  EXPECT_THAT(index("[]"), HasSubstr("index.json: not an index"));
  EXPECT_THAT(index(R"({"weight_map":{"x":"a b"}})"), HasSubstr("'a b' is not the name of a file"));
  EXPECT_THAT(
      index(R"({"weight_map":{"x":"b.safetensors"}})"),
      HasSubstr("/b.safetensors: it is missing, but model.safetensors.index.json lists it"));
  EXPECT_THAT(index(R"({"weight_map":{"x":"a.safetensors","h.0.w":"a.safetensors"}})"),
              HasSubstr("/a.safetensors: tensor 'x': model.safetensors.index.json says that it"));
  fs::resize_file(folder.path(kIndexName), kMaxIndexBytes + 1);
  EXPECT_THAT(refusal(folder.path()), HasSubstr("33554433 bytes, where 33554432 are the most"));
}

}  // namespace
}  // namespace elixir::checkpoints
