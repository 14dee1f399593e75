#include "shm/runtime_folder.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/temporary_folder.h"

namespace elixir::shm {
namespace {

unsigned mode_of(const std::string& path) {
  struct stat info {};
  EXPECT_EQ(::lstat(path.c_str(), &info), 0);
  return info.st_mode & 07777;
}

TEST(RuntimeFolderTest, IsMadeForItsUserAlone) {
  const TemporaryFolder parent;
  const mode_t before = ::umask(0);
  const auto folder = open_runtime_folder(parent.path() + "/a/run");
  ::umask(before);
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  EXPECT_EQ(mode_of(folder->path), 0700u);
  EXPECT_TRUE(open_runtime_folder(folder->path).ok()) << "the second time";
}

TEST(RuntimeFolderTest, RefusesOneThatOthersMayWriteTo) {
  const TemporaryFolder parent;
  for (mode_t mode : {0770u, 0707u, 01777u}) {
    const std::string path = parent.path() + "/" + std::to_string(mode);
    ASSERT_EQ(::mkdir(path.c_str(), 0700), 0);
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    const Status status = open_runtime_folder(path).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << path;
    EXPECT_NE(status.message().find("ELIXIR_RUNTIME_DIR"), std::string::npos);
  }
}

TEST(RuntimeFolderTest, RefusesAnotherUsersFolder) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to give a folder away";
  const TemporaryFolder parent;
  const std::string path = parent.path() + "/other";
  ASSERT_EQ(::mkdir(path.c_str(), 0700), 0);
  ASSERT_EQ(::chown(path.c_str(), 12345, 12345), 0);
  EXPECT_EQ(open_runtime_folder(path).status().code(), Code::kInvalidArgument);
}

// In a folder like /tmp anybody can put a link where ours will be.
TEST(RuntimeFolderTest, RefusesLinksAndFiles) {
  const TemporaryFolder parent;
  ASSERT_EQ(::mkdir((parent.path() + "/real").c_str(), 0700), 0);
  ASSERT_EQ(::symlink((parent.path() + "/real").c_str(), (parent.path() + "/link").c_str()), 0);
  for (const char* end : {"/link", "/link/"}) {
    EXPECT_EQ(open_runtime_folder(parent.path() + end).status().code(), Code::kInvalidArgument)
        << end;
  }
  const std::string file = parent.path() + "/file";
  ASSERT_EQ(::mknod(file.c_str(), S_IFREG | 0600, 0), 0);
  EXPECT_EQ(open_runtime_folder(file).status().code(), Code::kInvalidArgument);
}

TEST(RuntimeFolderTest, TheNearerSettingWins) {
  const TemporaryFolder parent;
  ::setenv("XDG_RUNTIME_DIR", parent.path().c_str(), 1);
  ::unsetenv("ELIXIR_RUNTIME_DIR");
  EXPECT_EQ(open_runtime_folder()->path, parent.path() + "/elixir");
  ::setenv("ELIXIR_RUNTIME_DIR", (parent.path() + "/set").c_str(), 1);
  EXPECT_EQ(open_runtime_folder()->path, parent.path() + "/set");
  EXPECT_EQ(open_runtime_folder(parent.path() + "/given")->path, parent.path() + "/given");
  ::unsetenv("ELIXIR_RUNTIME_DIR");
  ::unsetenv("XDG_RUNTIME_DIR");
}

TEST(RuntimeFolderTest, EndpointsNameTheSockets) {
  const RuntimeFolder folder{"/run/x"};
  EXPECT_EQ(folder.control_endpoint(), "ipc://" + folder.control_socket());
  EXPECT_EQ(folder.status_endpoint(), "ipc://" + folder.status_socket());
}

}  // namespace
}  // namespace elixir::shm
