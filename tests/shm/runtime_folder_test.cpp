#include "shm/runtime_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pwd.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>

#include "shm/attach_socket.h"
#include "tests/support/matchers.h"
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
    SCOPED_TRACE(path);
    expect_refused(open_runtime_folder(path).status(), Code::kInvalidArgument,
                   {"ELIXIR_RUNTIME_DIR"});
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

// XDG_RUNTIME_DIR and the folder of services, of this user unless told.
class ServicesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ::unsetenv("ELIXIR_RUNTIME_DIR");
    ASSERT_EQ(::mkdir(login().c_str(), 0700), 0);
    ASSERT_EQ(::mkdir(services().c_str(), 0755), 0);
    ::setenv("XDG_RUNTIME_DIR", login().c_str(), 1);
  }
  void TearDown() override { ::unsetenv("XDG_RUNTIME_DIR"); }

  std::string login() const { return parent_.path() + "/login"; }
  std::string services() const { return parent_.path() + "/run"; }
  std::string open() const {
    const auto folder = open_runtime_folder("", services());
    return folder.ok() ? folder->path : folder.status().message();
  }
  static std::string user() {
    const passwd* const user = ::getpwuid(::geteuid());
    return user == nullptr ? "" : user->pw_name;
  }
  static UniqueFd listen_in(const std::string& folder) {
    ::mkdir(folder.c_str(), 0700);
    return std::move(*listen_attach(RuntimeFolder{folder}.attach_socket()));
  }

 private:
  const TemporaryFolder parent_;
};

TEST_F(ServicesTest, AServiceThatListensIsFoundByALogin) {
  for (const std::string& name : {std::string("elixir"), "elixir-" + user()}) {
    const std::string service = services() + "/" + name;
    const UniqueFd listener = listen_in(service);
    EXPECT_EQ(open(), service);
  }
  // Their sockets are stale now.
  EXPECT_EQ(open(), login() + "/elixir");
  const UniqueFd both = listen_in(services() + "/elixir"), own = listen_in(login() + "/elixir");
  EXPECT_EQ(open(), login() + "/elixir") << "the nearer one of two";
}

TEST_F(ServicesTest, WithoutALoginTheServicesFolderIsTaken) {
  ::unsetenv("XDG_RUNTIME_DIR");
  EXPECT_EQ(open(), "/tmp/elixir-" + std::to_string(::geteuid()));
  ASSERT_EQ(::mkdir((services() + "/elixir").c_str(), 0700), 0);
  EXPECT_EQ(open(), services() + "/elixir");
}

TEST_F(ServicesTest, NothingIsMadeInAnotherUsersFolder) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to give a folder away";
  ASSERT_EQ(::chown(login().c_str(), 12345, 12345), 0);  // sudo with the user's variable kept
  ASSERT_EQ(::mkdir((services() + "/elixir").c_str(), 0700), 0);
  EXPECT_EQ(open(), services() + "/elixir");
  EXPECT_NE(::access((login() + "/elixir").c_str(), F_OK), 0);
  // Nor is another user's elixird taken for one's own.
  const UniqueFd listener = listen_in(login() + "/elixir");
  ASSERT_EQ(::chown((login() + "/elixir").c_str(), 12345, 12345), 0);
  EXPECT_EQ(open(), services() + "/elixir");
}

std::string hash_folder(const DaemonPlaces& places) {
  return places.own.path.substr(places.own.path.rfind('/') + 1);
}

TEST_F(ServicesTest, EachLaunchHasAFolderOfItsOwn) {
  ASSERT_EQ(::mkdir((login() + "/elixir").c_str(), 0700), 0);
  const DaemonPlaces first = must(daemon_places("", "run-1", services()));
  EXPECT_EQ(first.launch, "run-1");
  EXPECT_EQ(first.own.path, login() + "/elixir-launches/" + hash_folder(first));
  EXPECT_EQ(must(daemon_places("", "run-1", services())).own.path, first.own.path) << "a restart";
  EXPECT_NE(must(daemon_places("", "run-2", services())).own.path, first.own.path);
  ASSERT_EQ(first.services.size(), 1u);
  EXPECT_EQ(first.services[0].path, login() + "/elixir");
  EXPECT_NE(::access(first.own.path.c_str(), F_OK), 0) << "made where nobody starts an elixird";
  ASSERT_TRUE(make_launch_folder(first.own).ok());
  EXPECT_EQ(mode_of(first.own.path), 0700u);
  ::unsetenv("XDG_RUNTIME_DIR");
  const DaemonPlaces without_login = must(daemon_places("", "run-1", services()));
  EXPECT_EQ(without_login.own.path,
            fmt::format("/tmp/elixir-{}/{}", ::geteuid(), hash_folder(first)));
  expect_refused(daemon_places("", "", services()).status(), Code::kInvalidArgument,
                 {"LaunchEnvironment"});
}

TEST_F(ServicesTest, AFolderThatIsNamedIsNobodysOwn) {
  const TemporaryFolder named;
  ::setenv("ELIXIR_RUNTIME_DIR", named.path().c_str(), 1);
  for (const char* launch : {"run-1", "run-2", ""}) {
    const DaemonPlaces places = must(daemon_places("", launch, services()));
    EXPECT_EQ(places.own.path, named.path());
    EXPECT_EQ(places.launch, "");
    EXPECT_TRUE(places.services.empty());
  }
  EXPECT_EQ(must(daemon_places(login() + "/given", "run-1", services())).own.path,
            login() + "/given");
  ::unsetenv("ELIXIR_RUNTIME_DIR");
}

// Their logs are what is left of launches that are over.
TEST_F(ServicesTest, FoldersOfLaunchesThatAreOverAreBounded) {
  std::vector<RuntimeFolder> folders;
  UniqueFd serving;  // the first of them
  for (size_t i = 0; i < kKeptLaunches + 3; ++i) {
    folders.push_back(must(daemon_places("", fmt::format("run-{}", i), services())).own);
    ASSERT_TRUE(make_launch_folder(folders[i]).ok());
    for (const std::string& file : {folders[i].log_file(), folders[i].lock_file()}) {
      ASSERT_EQ(::mknod(file.c_str(), S_IFREG | 0600, 0), 0);
    }
    const auto age = std::filesystem::file_time_type::clock::now() - std::chrono::hours(1000 - i);
    std::filesystem::last_write_time(folders[i].path, age);
    if (i > 0) continue;
    serving.reset(::open(folders[0].lock_file().c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(::flock(serving.get(), LOCK_EX), 0);
  }
  const RuntimeFolder next = must(daemon_places("", "next", services())).own;
  ASSERT_TRUE(make_launch_folder(next).ok());
  for (size_t i = 0; i < folders.size(); ++i) {
    const bool kept = ::access(folders[i].path.c_str(), F_OK) == 0;
    EXPECT_EQ(kept, i == 0 || i >= folders.size() + 1 - kKeptLaunches) << i;
  }
}

TEST_F(ServicesTest, AllThatListenAreListed) {
  const TemporaryFolder elsewhere;
  const DaemonPlaces launch = must(daemon_places("", "run-1", services()));
  ASSERT_TRUE(make_launch_folder(launch.own).ok());
  ASSERT_TRUE(make_launch_folder(must(daemon_places("", "run-2", services())).own).ok());
  const UniqueFd of_service = listen_in(services() + "/elixir"),
                 of_launch = listen_in(launch.own.path), named = listen_in(elsewhere.path());
  std::vector<std::string> found;  // this machine may have others
  for (const RuntimeFolder& folder : listening_folders(services())) {
    const bool of_this_test = folder.path.starts_with(login().substr(0, login().rfind('/'))) ||
                              folder.path == elsewhere.path();
    if (of_this_test) found.push_back(folder.path);
  }
  EXPECT_THAT(found,
              ::testing::ElementsAre(services() + "/elixir", launch.own.path, elsewhere.path()));
}

TEST(RuntimeFolderTest, EndpointsNameTheSockets) {
  const RuntimeFolder folder{"/run/x"};
  EXPECT_EQ(folder.control_endpoint(), "ipc://" + folder.control_socket());
  EXPECT_EQ(folder.status_endpoint(), "ipc://" + folder.status_socket());
}

}  // namespace
}  // namespace elixir::shm
