#include "base/run_main.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <iostream>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/spare_descriptors.h"
#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"

namespace elixir {
namespace {

void write_to_a_full_disk() {
  if (std::freopen("/dev/full", "w", stdout) == nullptr) ::_exit(1);
}

// How run_main() ends a program that throws, and what it says.
void expect_end(const std::function<int()>& run, int code, const char* said) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(run_main("program", run), code);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr(said));
}

TEST(RunMain, TheCodeIsThatOfTheProgramOrOfWhatItThrows) {
  expect_end([] { return 0; }, 0, "");
  expect_end([] { return 7; }, 7, "");
  expect_end([]() -> int { throw Error(error(Code::kBadInput, "a file")); }, 4,
             "program: a file\n");
  expect_end([]() -> int { throw std::runtime_error("text\nstack"); }, 70, "program: text\n");
}

TEST(RunMain, LackOfMemoryAndThreadsIs3WithARemedy) {
  expect_end([]() -> int { throw std::bad_alloc(); }, 3,
             "program: no memory left: raise the limit");
  const char* const torchs = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: ";
  expect_end([&]() -> int { throw std::runtime_error(torchs); }, 3, "no memory left");
  expect_end([]() -> int { throw std::system_error(EAGAIN, std::generic_category(), "a thread"); },
             3, "cannot start a thread: raise the limits (ulimit -u");
  expect_end([]() -> int { throw std::system_error(EIO, std::generic_category(), "a file"); }, 70,
             "a file");
}

// As LibTorch does in threads of its own, and while it is loaded.
TEST(RunMain, AnExceptionThatNobodyCatchesIs3IfItIsLackOfMemory) {
  EXPECT_EXIT(std::thread([] { throw std::bad_alloc(); }).join(), ::testing::ExitedWithCode(3),
              "base_test: no memory left: raise the limit");
  EXPECT_DEATH(std::thread([] { throw std::runtime_error("text"); }).join(),
               "base_test: uncaught exception: text");
}

TEST(RunMain, OutputThatIsLostIs3AndAnErrorKeepsItsCode) {
  const auto program = [](const char* end, int code) {
    write_to_a_full_disk();
    ::_exit(run_main("program", [&] {
      std::cout << "a line" << end << std::flush;
      return code;
    }));
  };
  constexpr const char* kSaid =
      "program: lines of standard output are lost \\(No space left on device\\): make room";
  EXPECT_EXIT(program("", 0), ::testing::ExitedWithCode(3), kSaid);
  EXPECT_EXIT(program("\n", 0), ::testing::ExitedWithCode(3), kSaid);
  EXPECT_EXIT(program("", 4), ::testing::ExitedWithCode(4), kSaid);
}

// Without /dev a closed descriptor is opened so (settle_inherited).
TEST(RunMain, OutputThatTheStarterHadClosedIsNotLost) {
  const auto program = [] {
    if (std::freopen("/dev/null", "w", stdout) == nullptr) ::_exit(1);
    const int nowhere = ::open("/", O_PATH);
    if (::dup2(nowhere, STDOUT_FILENO) < 0) ::_exit(1);
    ::_exit(run_main("program", [] {
      std::cout << "a line" << std::endl;
      return 0;
    }));
  };
  EXPECT_EXIT(program(), ::testing::ExitedWithCode(0), "");
}

TEST(RunMain, AWorkingDirectoryThatWasRemovedIsNamed) {
  const TemporaryFolder folder;
  const auto program = [&] {
    const std::string path = folder.path("gone");
    if (::mkdir(path.c_str(), 0700) != 0 || ::chdir(path.c_str()) != 0) ::_exit(1);
    if (::rmdir(path.c_str()) != 0) ::_exit(1);
    ::_exit(run_main("program", [] { return 0; }));
  };
  EXPECT_EXIT(program(), ::testing::ExitedWithCode(4),
              "program: the working directory was removed: cd to another folder");
}

TEST(SpareDescriptors, AsManyAsTheLimitLeaves) {
  const auto program = [] {
    const rlimit few{100, 100};
    if (::setrlimit(RLIMIT_NOFILE, &few) != 0) ::_exit(1);
    uint32_t left = 0;
    std::vector<UniqueFd> all;
    for (; all.empty() || all.back().valid(); ++left) all.emplace_back(::dup(STDERR_FILENO));
    all.clear();
    const bool fits = check_spare_descriptors(left - 1).ok();
    const Status status = check_spare_descriptors(left);
    std::cerr << status.message() << "\n";
    ::_exit(fits ? status.exit_code() : 1);
  };
  EXPECT_EXIT(program(), ::testing::ExitedWithCode(3),
              "cannot open .* more descriptors.*ulimit -n");
}

}  // namespace
}  // namespace elixir
