#include "checkpoint/new_folder.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "checkpoint/folder_calls.h"
#include "checkpoint/safetensors.h"
#include "tests/checkpoint/saved.h"
#include "tests/support/matchers.h"

namespace elixir::checkpoints {
namespace {

namespace fs = std::filesystem;
using namespace ::elixir::checkpoints::testing;

class NewFolderTest : public SavedInFolder {
 protected:
  NewFolder create(const std::string& name, const std::string& tag = "job") {
    return must(NewFolder::create(parent_.get(), name, step_of_name(name).value_or(0), tag));
  }
  std::string refusal(const std::string& name, const std::string& tag = "job", uint64_t step = 0) {
    return refusal_of(NewFolder::create(parent_.get(), name, step, tag).status(),
                      Code::kInvalidArgument);
  }
};

// More of them than a call takes.
TEST(WriteAll, PartsLieOneBehindAnother) {
  const UniqueFd file(::memfd_create("test", MFD_CLOEXEC));
  std::string text;
  for (int i = 0; i < 3000; ++i) text += std::to_string(i);
  std::vector<iovec> parts;
  for (size_t at = 0; at < text.size(); at += 3) {
    parts.push_back({text.data() + at, std::min<size_t>(3, text.size() - at)});
  }
  ASSERT_TRUE(write_all(file.get(), parts, 2).ok());
  std::string read(text.size() + 3, 'x');
  EXPECT_EQ(::pread(file.get(), read.data(), read.size(), 0), std::ssize(text) + 2);
  EXPECT_EQ(read.substr(2, text.size()), text);
}

// Whoever writes hears what is to be done, of bytes and of parts.
TEST(WriteAll, AFullDiskIsSaidWithPathAndRemedy) {
  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  if (!full.valid()) GTEST_SKIP() << "no /dev/full";
  char byte = 'x';
  iovec part{&byte, 1};
  for (const Status& status :
       {write_all(full.get(), std::span(&part, 1), 0), write_all(full.get(), as_bytes("x"), 0)}) {
    expect_refused(status, Code::kResourceExhausted,
                   {"/dev/full: No space left on device: make room"});
  }
}

TEST_F(NewFolderTest, ItAppearsUnderItsNameWithAManifestOfAllFiles) {
  must(save_step(parent_.get(), 7));
  EXPECT_THAT(names(), ElementsAre("step-000000007"));
  EXPECT_TRUE(is_whole(folder_.path("step-000000007"), 7));
  const Manifest manifest =
      must(decode_manifest(contents(folder_.path("step-000000007/elixir.json"))));
  std::vector<std::string> files;
  for (const ManifestFile& file : manifest.files) files.push_back(file.name);
  EXPECT_THAT(files, ElementsAre("config.json", kModelFile, kOptimizerFile, "user/rank-0.bin"));
}

TEST_F(NewFolderTest, WhoMayReadTheParentMayReadItWhateverTheUmask) {
  for (const unsigned parent : {0700u, 0750u, 0755u, 0777u}) {
    ASSERT_EQ(::fchmod(parent_.get(), parent), 0);
    const mode_t before = ::umask(0077);  // as a daemon has it
    const Status saved = save_step(parent_.get(), parent);
    ::umask(before);
    ASSERT_TRUE(saved.ok()) << saved.message();
    const std::string folder = folder_.path(step_name(parent));
    const unsigned others = parent & 0055;  // never to write
    for (const char* name : {"", "/optimizer", "/user"}) {
      struct stat about {};
      ASSERT_EQ(::stat((folder + name).c_str(), &about), 0) << name;
      EXPECT_EQ(about.st_mode & 0777, 0700 | others) << name << " of " << parent;
    }
    struct stat about {};
    ASSERT_EQ(::stat((folder + "/elixir.json").c_str(), &about), 0);
    EXPECT_EQ(about.st_mode & 0777, 0600 | (others & 0044)) << parent;
  }
}

TEST_F(NewFolderTest, UntilThenItHasAnotherNameAndNoManifest) {
  NewFolder made = create("step-000000007");
  ASSERT_TRUE(made.write_file("config.json", as_bytes("{}")).ok());
  EXPECT_THAT(names(), ElementsAre("step-000000007.tmp-job"));
  EXPECT_THAT(names_of(folder_.path("step-000000007.tmp-job")), ElementsAre("config.json"));
  ASSERT_TRUE(made.publish({.step = 7}).ok());
  EXPECT_THAT(names(), ElementsAre("step-000000007"));
}

TEST_F(NewFolderTest, WhatIsNotPublishedGoes) {
  {
    NewFolder made = create("a");
    ASSERT_TRUE(made.create_file("user/x", 10).ok());
    NewFolder moved = std::move(made);
    EXPECT_THAT(names(), ElementsAre("a.tmp-job"));
    NewFolder other = create("b");
    moved = std::move(other);
    EXPECT_THAT(names(), ElementsAre("b.tmp-job"));
  }
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(NewFolderTest, AFileThatIsHashedInPiecesHasAllOfThem) {
  const std::string text(kMaxPieceBytes + 5, 'x');
  NewFolder made = create("a");
  ASSERT_TRUE(made.write_file("large", as_bytes(text)).ok());
  ASSERT_TRUE(made.publish({}).ok());
  const Manifest manifest = must(decode_manifest(contents(folder_.path("a/elixir.json"))));
  ASSERT_EQ(manifest.files.size(), 1u);
  EXPECT_THAT(manifest.files[0].pieces,
              ElementsAre(Piece{kMaxPieceBytes, xxh3_of(as_bytes(text).first(kMaxPieceBytes))},
                          Piece{5, xxh3_of(as_bytes("xxxxx"))}));
}

TEST_F(NewFolderTest, NamesThatLeaveTheFolderOrMeanSomethingElseAreRefused) {
  for (const char* const name :
       {"", ".", "..", "../a", "a/b", "/a", "a b", "step-000000001.tmp-x",
        ".deleting-step-000000001", "a.tmp-x", "a.partial-1", ".elixir-lock"}) {
    EXPECT_NE(refusal(name), "") << name;
  }
  EXPECT_NE(refusal(std::string(250, 'x')), "");  // with what it is called meanwhile
  EXPECT_NE(refusal("a", "../b"), "");
  EXPECT_THAT(refusal("step-000000007", "job", 8), HasSubstr("call it step-000000008"));
  EXPECT_THAT(names(), IsEmpty());
}

// A parent with such an entry would look like a checkpoint, or like a model's folder.
TEST_F(NewFolderTest, NoCheckpointIsCalledAsAnEntryOfOneIs) {
  save(7);
  std::vector<std::string> own = names_of(folder_.path("step-000000007"));
  EXPECT_THAT(own, ElementsAre("config.json", kManifestName, kModelFile, "optimizer", "user"));
  own.insert(own.end(), {kIndexName, "model.safetensors"});
  for (const std::string& name : own) {
    EXPECT_THAT(refusal(name), HasSubstr("give it another, such as step-000000001")) << name;
  }
  EXPECT_THAT(names(), ElementsAre("step-000000007"));
}

// Descriptors of the parent that name it, and cannot read or sync it themselves.
TEST_F(NewFolderTest, ItIsSavedThroughADescriptorOfAnyKind) {
  for (const int flags : {O_RDONLY, O_PATH}) {
    const UniqueFd parent(::open(folder_.path().c_str(), flags | O_DIRECTORY | O_CLOEXEC));
    for (const uint64_t step : {1, 2, 3}) must(save_step(parent.get(), step));
    EXPECT_TRUE(is_whole(folder_.path("step-000000003"), 3));
    EXPECT_EQ(must(prune(parent.get(), {.last = 2})), 1u);
    EXPECT_THAT(names(), ElementsAre("step-000000002", "step-000000003"));
    EXPECT_EQ(must(prune(parent.get(), {.last = 1})), 1u);
    must(remove_folder(parent.get(), "step-000000003"));
  }
}

TEST_F(NewFolderTest, WhatIsThereIsNotWrittenOver) {
  folder_.write("folder/file", "kept");
  folder_.write("file", "kept");
  fs::create_symlink("/nowhere", folder_.path("link"));
  fs::create_directory(folder_.path("empty"));
  for (const char* const name : {"folder", "file", "link", "empty"}) {
    EXPECT_THAT(refusal(name), HasSubstr(std::string(name) + " exists already"));
  }
  EXPECT_EQ(contents(folder_.path("folder/file")), "kept");
  EXPECT_EQ(contents(folder_.path("file")), "kept");
}

// Somebody else made it while this one was written.
TEST_F(NewFolderTest, WhatAppearedMeanwhileIsNotWrittenOver) {
  for (const bool link : {false, true}) {
    NewFolder made = create("a");
    if (link) {
      fs::create_symlink("/nowhere", folder_.path("a"));
    } else {
      fs::create_directory(folder_.path("a"));  // empty: a plain rename would replace it
    }
    expect_refused(made.publish({}), Code::kInvalidArgument, {"exists already"});
    fs::remove(folder_.path("a"));
  }
}

// It was moved away, and something else lies in its place: neither published nor removed.
TEST_F(NewFolderTest, WhatWasPutInItsPlaceIsNotPublished) {
  for (const bool link : {false, true}) {
    {
      NewFolder made = create("a");
      ASSERT_TRUE(made.write_file("x", as_bytes("mine")).ok());
      fs::rename(folder_.path("a.tmp-job"), folder_.path("moved"));
      folder_.write("other/x", "another's");
      if (link) {
        fs::create_symlink("other", folder_.path("a.tmp-job"));
      } else {
        fs::rename(folder_.path("other"), folder_.path("a.tmp-job"));
      }
      expect_refused(made.publish({}), Code::kInvalidArgument,
                     {"is not the folder that was written", folder_.path("moved")});
    }
    EXPECT_FALSE(fs::exists(fs::symlink_status(folder_.path("a"))));
    EXPECT_EQ(contents(folder_.path("a.tmp-job/x")), "another's");
    for (const char* const left : {"a.tmp-job", "moved", "other"}) {
      fs::remove_all(folder_.path(left));
    }
  }
}

TEST_F(NewFolderTest, LeftOversOfCheckpointsGoAndNothingElse) {
  for (const char* const left : {"step-000000001.tmp-other", "step-000000002.tmp-job",
                                 "mine.tmp-other", ".deleting-step-000000003"}) {
    folder_.write(std::string(left) + "/optimizer/file", "x");
    folder_.write(std::string(left) + "/file", "x");
  }
  const std::vector<std::string> kept = {
      ".deleting-mine", "another.tmp-other", "notes.tmp-1",   "step-000000004",
      "step-4",         "step-5.tmp-job",    "step-x.tmp-job"};
  for (const std::string& name : kept) folder_.write(name + "/file", "x");
  const NewFolder made = create("mine");
  std::vector<std::string> now = kept;
  now.push_back("mine.tmp-job");
  std::sort(now.begin(), now.end());
  EXPECT_EQ(names(), now);
}

TEST_F(NewFolderTest, ALeftOverThatIsALinkLeadsNowhere) {
  folder_.write("elsewhere/file", "kept");
  fs::create_symlink(folder_.path("elsewhere"), folder_.path("step-000000001.tmp-other"));
  folder_.write("step-000000002.tmp-other/file", "x");
  fs::create_symlink(folder_.path("elsewhere"), folder_.path("step-000000002.tmp-other/user"));
  const NewFolder made = create("a");
  EXPECT_EQ(contents(folder_.path("elsewhere/file")), "kept");
  EXPECT_FALSE(fs::exists(folder_.path("step-000000002.tmp-other")));
}

// A checkpoint is two levels deep; what is deeper is none of it.
TEST_F(NewFolderTest, ALeftOverThatIsDeeperStays) {
  folder_.write("step-000000001.tmp-other/a/b/file", "kept");
  const NewFolder made = create("a");
  EXPECT_EQ(contents(folder_.path("step-000000001.tmp-other/a/b/file")), "kept");
}

TEST_F(NewFolderTest, FilesHaveNamesOfTheirOwn) {
  NewFolder made = create("a");
  for (const char* const name : {"", "..", "../x", "user/../x", "/x", "a/b/c", "elixir.json"}) {
    expect_refused(made.create_file(name, 1).status(), Code::kInvalidArgument, {name});
  }
  ASSERT_TRUE(made.write_file("x", as_bytes("1")).ok());
  EXPECT_FALSE(made.write_file("x", as_bytes("2")).ok());
  EXPECT_FALSE(made.create_file("x/y", 1).ok());  // x is a file
  ASSERT_TRUE(made.publish({}).ok());
  EXPECT_EQ(contents(folder_.path("a/x")), "1");
}

TEST_F(NewFolderTest, ALinkInItsPlaceIsNotFollowed) {
  const std::string target = folder_.write("elsewhere/file", "kept");
  NewFolder made = create("a");
  fs::create_symlink(target, folder_.path("a.tmp-job/x"));
  fs::create_symlink(folder_.path("elsewhere"), folder_.path("a.tmp-job/user"));
  fs::create_symlink(target, folder_.path("a.tmp-job/elixir.json"));
  EXPECT_FALSE(made.write_file("x", as_bytes("lost")).ok());
  EXPECT_FALSE(made.write_file("user/file", as_bytes("lost")).ok());
  EXPECT_FALSE(made.publish({}).ok());
  EXPECT_EQ(contents(target), "kept");
}

TEST_F(NewFolderTest, AFileThatIsNotFullIsNotPublished) {
  NewFolder made = create("a");
  const int fd = must(made.create_file("x", 10));
  ASSERT_EQ(::ftruncate(fd, 9), 0);
  Manifest manifest;
  manifest.files = {{"x", 10, {{10, 0}}}};
  expect_refused(made.publish(manifest), Code::kInternal, {"9 bytes, of 10"});
  EXPECT_FALSE(fs::exists(folder_.path("a")));
}

// In a child, whose limits and user are its own. Its exit code.
int in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int state = 0;
  EXPECT_EQ(::waitpid(child, &state, 0), child);
  return WIFEXITED(state) ? WEXITSTATUS(state) : -1;
}

TEST_F(NewFolderTest, SmallFilesMayBeMoreThanDescriptors) {
  EXPECT_EQ(in_child([&] {
              const rlimit limit{40, 40};
              if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
              NewFolder made = create("a");
              for (int i = 0; i < 100; ++i) {
                if (!made.write_file("user/rank-" + std::to_string(i), as_bytes("x")).ok())
                  return 2;
              }
              return made.publish({}).ok() ? 0 : 3;
            }),
            0);
  EXPECT_EQ(names_of(folder_.path("a/user")).size(), 100u);
}

TEST_F(NewFolderTest, AFolderWithoutWritePermissionSaysWhoMustBeAbleToWrite) {
  ASSERT_EQ(::chmod(folder_.path().c_str(), 0755), 0);
  constexpr uid_t kNobody = 65534;
  const uid_t user = ::geteuid() == 0 ? kNobody : ::geteuid();
  if (user != kNobody) {
    ASSERT_EQ(::chmod(folder_.path().c_str(), 0555), 0);
  }
  EXPECT_EQ(in_child([&] {
              if (user == kNobody && (::setgroups(0, nullptr) != 0 || ::setuid(kNobody) != 0)) {
                return 1;
              }
              const Result<NewFolder> made = NewFolder::create(parent_.get(), "a", 0, "job");
              if (made.ok() || made.status().code() != Code::kInvalidArgument) return 2;
              const std::string wanted = folder_.path("a.tmp-job") +
                                         ": Permission denied: the folder must be writable " +
                                         "for user " + std::to_string(user);
              if (made.status().message().find(wanted) == std::string::npos) return 3;
              const Result<int> lock = lock_folder(parent_.get(), 0);
              return !lock.ok() && lock.status().code() == Code::kInvalidArgument ? 0 : 4;
            }),
            0);
  ASSERT_EQ(::chmod(folder_.path().c_str(), 0755), 0);
  EXPECT_THAT(names(), IsEmpty());
}

// It could not be synced: that is said before a byte is written.
TEST_F(NewFolderTest, AFolderThatCannotBeReadSaysWhoMustBeAbleToRead) {
  constexpr uid_t kNobody = 65534;
  const bool root = ::geteuid() == 0;
  if (root) {
    ASSERT_EQ(::chown(folder_.path().c_str(), kNobody, kNobody), 0);
  }
  ASSERT_EQ(::chmod(folder_.path().c_str(), 0300), 0);
  EXPECT_EQ(in_child([&] {
              if (root && (::setgroups(0, nullptr) != 0 || ::setuid(kNobody) != 0)) return 1;
              const UniqueFd parent(::open(folder_.path().c_str(), O_PATH | O_DIRECTORY));
              const Status saved = save_step(parent.get(), 1);
              if (saved.code() != Code::kInvalidArgument) return 2;
              const std::string wanted = ": the folder must also be readable for user ";
              return saved.message().find(folder_.path() + wanted) == std::string::npos ? 3 : 0;
            }),
            0);
  ASSERT_EQ(::chmod(folder_.path().c_str(), 0700), 0);
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(NewFolderTest, AFolderThatWentAwayIsSaid) {
  ASSERT_EQ(::rmdir(folder_.path().c_str()), 0);
  EXPECT_THAT(refusal("a"), HasSubstr(folder_.path()));
}

}  // namespace
}  // namespace elixir::checkpoints
