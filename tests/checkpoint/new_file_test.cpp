#include "checkpoint/new_file.h"

#include "tests/checkpoint/saved.h"
#include "tests/support/matchers.h"

namespace elixir::checkpoints {
namespace {

namespace fs = std::filesystem;
using namespace ::elixir::checkpoints::testing;

class NewFileTest : public SavedInFolder {
 protected:
  NewFile create(const std::string& name) { return must(NewFile::create(folder_.path(name))); }
};

TEST_F(NewFileTest, ItHasItsNameOnceItIsWhole) {
  NewFile made = create("out.pt");
  ASSERT_TRUE(write_all(made.fd(), as_bytes("bytes"), 0).ok());
  EXPECT_FALSE(fs::exists(folder_.path("out.pt")));
  must(made.publish());
  EXPECT_THAT(names(), ElementsAre("out.pt"));
  EXPECT_EQ(contents(folder_.path("out.pt")), "bytes");
}

TEST_F(NewFileTest, WhatIsNotPublishedGoes) {
  {
    const NewFile made = create("out.pt");
    EXPECT_THAT(names(), ElementsAre("out.pt.partial-" + std::to_string(::getpid())));
  }
  EXPECT_THAT(names(), IsEmpty());
}

// Also where it comes between, and where it leads nowhere.
TEST_F(NewFileTest, NothingIsWrittenOver) {
  folder_.write("there", "mine");
  fs::create_symlink("nowhere", folder_.path("link"));
  fs::create_directory(folder_.path("folder"));
  for (const char* const name : {"there", "link", "folder"}) {
    expect_refused(NewFile::create(folder_.path(name)).status(), Code::kInvalidArgument,
                   {"exists already"});
    EXPECT_THAT(check_new_file(folder_.path(name)).message(), HasSubstr("give another name"));
  }
  {
    NewFile made = create("late");
    folder_.write("late", "mine");
    EXPECT_THAT(made.publish().message(), HasSubstr("late exists already"));
  }
  EXPECT_EQ(contents(folder_.path("late")), "mine");
  EXPECT_EQ(contents(folder_.path("there")), "mine");
  EXPECT_THAT(names(), ElementsAre("folder", "late", "link", "there"));
}

TEST_F(NewFileTest, WhereThereIsNoFolderIsSaid) {
  const std::string path = folder_.path("none/out.pt");
  EXPECT_THAT(check_new_file(path).message(), HasSubstr(folder_.path("none")));
  EXPECT_FALSE(check_new_file(folder_.path("none") + "/").ok());
  EXPECT_FALSE(check_new_file(folder_.path() + "/").ok());
}

}  // namespace
}  // namespace elixir::checkpoints
