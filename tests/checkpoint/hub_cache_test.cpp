#include "checkpoint/hub_cache.h"

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>

#include "checkpoint/stored_folder.h"
#include "tests/checkpoint/small_checkpoint.h"
#include "tests/support/matchers.h"

namespace elixir::checkpoints {
namespace {

namespace fs = std::filesystem;

// A model in a cache: every file of its snapshot is a link to a blob.
class HubCache : public ::testing::Test {
 protected:
  HubCache() {
    folder_.write(kBlob, small_file(small_.model_1));
    folder_.write("outside.safetensors", small_file(small_.model_1));
    folder_.write("models--a--b/refs/main", kHash);
    fs::create_directories(path(kSnapshot));
  }

  std::string path(std::string_view name) const { return folder_.path(name); }
  std::string snapshot() const { return path(kSnapshot); }
  void link(const std::string& target, const std::string& name = "model.safetensors") const {
    const fs::path at = fs::path(snapshot()) / name;
    fs::create_directories(at.parent_path());
    fs::remove(at);
    fs::create_symlink(target, at);
  }
  std::string refused() const {
    return refusal_of(open_stored_folder(snapshot()).status(), Code::kBadInput);
  }

  static constexpr const char* kHash = "0123456789abcdef";
  static constexpr const char* kSnapshot = "models--a--b/snapshots/0123456789abcdef";
  static constexpr const char* kBlob = "models--a--b/blobs/weights";
  const SmallCheckpoint small_;
  const TemporaryFolder folder_;
};

TEST_F(HubCache, LinksToBlobsAreFollowed) {
  link("../../blobs/weights");
  EXPECT_EQ(must(open_stored_folder(snapshot())).model.size(), 3u);
  // However the folder is named.
  fs::create_directory_symlink(snapshot(), path("mine"));
  EXPECT_EQ(must(open_stored_folder(path("mine"))).model.size(), 3u);
  EXPECT_EQ(must(open_stored_folder(path("mine") + "/.")).model.size(), 3u);
}

TEST_F(HubCache, ShardsAndTheirIndexAreLinks) {
  folder_.write("models--a--b/blobs/index", R"({"weight_map": {"h.0.w": "1.safetensors"}})");
  link("../../blobs/index", kIndexName);
  link("../../blobs/weights", "1.safetensors");
  EXPECT_EQ(must(open_stored_folder(snapshot())).model.size(), 1u);
}

TEST_F(HubCache, ACheckpointOfElixirMayLieThere) {
  SmallCheckpoint small;
  small.seal();
  const TemporaryFolder whole;
  small.write(whole);
  for (const auto& entry : fs::recursive_directory_iterator(whole.path())) {
    if (!entry.is_regular_file()) continue;
    const std::string name = fs::relative(entry.path(), whole.path());
    std::string blob = name, up = "../../";
    if (const size_t slash = blob.find('/'); slash != blob.npos) {
      blob[slash] = '-';
      up += "../";
    }
    fs::copy(entry.path(), path("models--a--b/blobs/" + blob));
    link(up + "blobs/" + blob, name);
  }
  const StoredFolder stored = must(open_stored_folder(snapshot()));
  EXPECT_EQ(stored.optimizer.size(), 12u);
  EXPECT_EQ(must(read_stored_file(stored, "user/rank-0.bin")), std::string(300, 'a'));
}

TEST_F(HubCache, LinksToOtherLinksInsideAreFollowed) {
  fs::create_symlink("weights", path("models--a--b/blobs/0"));
  for (int i = 1; i < 20; ++i) {
    fs::create_symlink("../blobs/" + std::to_string(i - 1),
                       path("models--a--b/blobs/" + std::to_string(i)));
  }
  link("../../blobs/19");
  EXPECT_TRUE(open_stored_folder(snapshot()).ok());
}

TEST_F(HubCache, LinksThatLeaveTheCacheAreRefused) {
  fs::create_directory_symlink(folder_.path(), path("models--a--b/blobs/out"));
  fs::create_symlink(path("outside.safetensors"), path("models--a--b/blobs/absolute"));
  const std::string leaving[] = {
      "../../../outside.safetensors",         // too far up
      "../../../models--a--b/blobs/weights",  // up and back again
      path("outside.safetensors"),            // absolute
      path(kBlob),                            // absolute, to a blob
      "../../blobs/absolute",                 // by a chain
      "../../blobs/out/outside.safetensors",  // through a folder that is a link
      "../../../../../../../../../dev/zero",  // to a device
      "/dev/zero",
      "/proc/self/exe",
  };
  for (const std::string& target : leaving) {
    SCOPED_TRACE(target);
    link(target);
    EXPECT_THAT(refused(), AllOf(HasSubstr("/model.safetensors: a symbolic link that leaves"),
                                 HasSubstr("cp -rL")));
  }
}

TEST_F(HubCache, LoopsAndLinksToNothingAreRefused) {
  fs::create_symlink("b", path("models--a--b/blobs/a"));
  fs::create_symlink("a", path("models--a--b/blobs/b"));
  for (const char* target : {"../../blobs/a", "model.safetensors"}) {
    link(target);
    EXPECT_THAT(refused(), HasSubstr("/model.safetensors: a symbolic link that leads to itself"));
  }
  link("../../blobs/gone");
  EXPECT_THAT(refused(), AllOf(HasSubstr("/model.safetensors: a symbolic link to a file that does "
                                         "not exist"),
                               HasSubstr("hf download")));
}

TEST_F(HubCache, WhatALinkLeadsToIsAnOrdinaryFile) {
  ASSERT_EQ(::mkfifo(path("models--a--b/blobs/pipe").c_str(), 0600), 0);
  for (const char* target : {"../../blobs/pipe", "../../blobs", "."}) {
    link(target);
    EXPECT_THAT(refused(), HasSubstr("/model.safetensors: not an ordinary file")) << target;
  }
}

TEST_F(HubCache, OnlyASnapshotIsOne) {
  const std::string others[] = {"models--a--b/other/h", "models--a--b/snapshots/h/deeper", "x/y"};
  for (const std::string& other : others) {
    SCOPED_TRACE(other);
    fs::create_directories(path(other));
    fs::create_symlink(path(kBlob), path(other) + "/model.safetensors");
    EXPECT_THAT(refusal_of(open_stored_folder(path(other)).status(), Code::kBadInput),
                HasSubstr("a symbolic link, which is not followed"));
  }
  // Its model's folder must have blobs, and its snapshots be no link.
  link("../../blobs/weights");
  fs::rename(path("models--a--b/blobs"), path("models--a--b/elsewhere"));
  fs::create_directory_symlink("elsewhere", path("models--a--b/blobs"));
  EXPECT_THAT(refused(), HasSubstr("which is not followed"));
}

// ---- names of the hub ----

class HubNames : public HubCache {
 protected:
  HubNames() {
    for (const char* variable : kVariables) ::unsetenv(variable);
    ::setenv("HF_HUB_CACHE", folder_.path().c_str(), 1);
    folder_.write(std::string(kSnapshot) + "/config.json", "{}");
  }
  ~HubNames() override { ::unsetenv("HF_HUB_CACHE"); }

  static constexpr const char* kVariables[] = {"HUGGINGFACE_HUB_CACHE", "HF_HOME",
                                               "XDG_CACHE_HOME"};
};

TEST_F(HubNames, AModelInTheCacheIsNamed) {
  EXPECT_EQ(missing_folder_remedy("a/b"),
            "; the hub's cache has it: give the folder " + snapshot());
  // Another branch's, where main has none.
  folder_.write("models--a--b/refs/main", "../../..");
  EXPECT_EQ(snapshot_of(path("models--a--b")), snapshot());
  fs::remove(path(kSnapshot) + "/config.json");
  EXPECT_EQ(snapshot_of(path("models--a--b")), "");
}

TEST_F(HubNames, TheCacheIsWhereHuggingfaceHubHasIt) {
  const TemporaryFolder home;
  const std::pair<const char*, std::string> places[] = {{"HUGGINGFACE_HUB_CACHE", "/"},
                                                        {"HF_HOME", "/hub/"},
                                                        {"XDG_CACHE_HOME", "/huggingface/hub/"}};
  for (const auto& [variable, inside] : places) {
    ::unsetenv("HF_HUB_CACHE");
    ::setenv(variable, home.path().c_str(), 1);
    const std::string found = home.path() + inside + "models--gpt2/snapshots/h";
    fs::create_directories(found);
    home.write(inside.substr(1) + "models--gpt2/snapshots/h/config.json", "{}");
    EXPECT_THAT(missing_folder_remedy("gpt2"), HasSubstr(found)) << variable;
    ::unsetenv(variable);
  }
}

TEST_F(HubNames, AnotherIsDownloaded) {
  EXPECT_THAT(missing_folder_remedy("meta-llama/Llama-3.1-8B"),
              HasSubstr("hf download meta-llama/Llama-3.1-8B --local-dir Llama-3.1-8B"));
  EXPECT_THAT(missing_folder_remedy("gpt2"), HasSubstr("hf download gpt2 --local-dir gpt2"));
}

TEST_F(HubNames, APathIsNoName) {
  for (const char* path : {"", "/a/b", "./a", "../a", "a/b/c", "a/", "~/a", "a b", "a/../b",
                           "a--b/c", "-x/y", "a/.b", "a\nb", "$(id)"}) {
    EXPECT_EQ(missing_folder_remedy(path), "") << path;
  }
}

}  // namespace
}  // namespace elixir::checkpoints
