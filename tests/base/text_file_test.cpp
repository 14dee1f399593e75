#include "base/text_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"

namespace elixir {
namespace {

TEST(TextFileTest, WhatIsNoOrdinaryFileIsNotWaitedAt) {
  const TemporaryFolder folder;
  const std::string pipe = folder.path("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, folder.path(), std::string("/dev/zero")}) {
    expect_refused(read_ordinary_file(path).status(), Code::kBadInput,
                   {path + " is not an ordinary file"});
  }
  EXPECT_THAT(read_ordinary_file(folder.path("none")).status().message(),
              HasSubstr("No such file"));
}

TEST(TextFileTest, AnOrdinaryFileIsReadThroughALinkToo) {
  const TemporaryFolder folder;
  const std::string file = folder.write("file", "text"), link = folder.path("link");
  ASSERT_EQ(::symlink(file.c_str(), link.c_str()), 0);
  EXPECT_EQ(*read_ordinary_file(file), "text");
  EXPECT_EQ(*read_ordinary_file(link), "text") << "as a cache of models has it";
}

TEST(TextFileTest, ANumberIsWhatAFileBeginsWith) {
  const TemporaryFolder folder;
  EXPECT_EQ(read_number(folder.write("bytes", "4194304\n")), 4194304u);
  EXPECT_EQ(read_number(folder.write("cache", "307200K\n")), 307200u);
  for (const char* none : {"max\n", "", "-1\n", "99999999999999999999\n"}) {
    EXPECT_EQ(read_number(folder.write("none", none)), std::nullopt) << none;
  }
  EXPECT_EQ(read_number(folder.path("absent")), std::nullopt);
}

TEST(TextFileTest, AFileThatIsTooLongIsNotRead) {
  const TemporaryFolder folder;
  const std::string file = folder.write("file", "");
  ASSERT_EQ(::truncate(file.c_str(), int64_t{1} << 40), 0);
  EXPECT_THAT(read_ordinary_file(file).status().message(), HasSubstr("longer than"));
}

}  // namespace
}  // namespace elixir
