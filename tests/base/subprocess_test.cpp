#include "base/subprocess.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "base/fd.h"
#include "base/interrupt.h"
#include "tests/support/outcomes.h"
#include "tests/support/patience.h"

namespace elixir {
namespace {

struct Pipe {
  Pipe() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    read_end.reset(ends[0]);
    write_end.reset(ends[1]);
  }
  std::string read_all() {
    write_end.reset();
    std::string text;
    char bytes[512];
    for (ssize_t got; (got = ::read(read_end.get(), bytes, sizeof bytes)) > 0;) {
      text.append(bytes, static_cast<size_t>(got));
    }
    return text;
  }
  UniqueFd read_end, write_end;
};

int exit_code_of(pid_t child) {
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// What a shell script prints.
std::string output_of(const std::string& script, std::vector<std::string> environment = {}) {
  Pipe pipe;
  SpawnOptions options;
  options.argv = {"sh", "-c", script};
  options.extra_environment = std::move(environment);
  options.stdout_fd = pipe.write_end.get();
  const Result<pid_t> child = spawn(options);
  EXPECT_TRUE(child.ok());
  const std::string text = pipe.read_all();
  EXPECT_EQ(exit_code_of(*child), 0);
  return text;
}

TEST(SubprocessTest, OneDescriptorMoreIsKeptWhereItIsAskedFor) {
  Pipe pipe;
  SpawnOptions options;
  options.argv = {"sh", "-c", "printf kept >/proc/self/fd/" + std::to_string(pipe.write_end.get())};
  options.kept_fd = pipe.write_end.get();
  const Result<pid_t> child = spawn(options);
  ASSERT_TRUE(child.ok());
  EXPECT_EQ(pipe.read_all(), "kept");
  EXPECT_EQ(exit_code_of(*child), 0);
}

TEST(SubprocessTest, RunsAndReturnsTheExitCode) {
  SpawnOptions options;
  options.argv = {"sh", "-c", "exit 7"};
  const Result<pid_t> child = spawn(options);
  ASSERT_TRUE(child.ok());
  EXPECT_EQ(exit_code_of(*child), 7);
}

TEST(SubprocessTest, AnExecThatFailsIsReportedHere) {
  SpawnOptions options;
  options.argv = {"/nonexistent/program"};
  const Result<pid_t> child = spawn(options);
  EXPECT_EQ(child.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(child.status().message(),
            "cannot start '/nonexistent/program': No such file or directory");
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
}

TEST(SubprocessTest, TheEnvironmentIsTheParentsWithChanges) {
  ::setenv("ELIXIR_TEST_KEPT", "kept", 1);
  ::setenv("ELIXIR_TEST_CHANGED", "old", 1);
  const std::string text =
      output_of("echo $ELIXIR_TEST_KEPT $ELIXIR_TEST_CHANGED $ELIXIR_TEST_NEW; env",
                {"ELIXIR_TEST_CHANGED=changed", "ELIXIR_TEST_NEW=a=b"});
  EXPECT_EQ(text.substr(0, text.find('\n')), "kept changed a=b");
  EXPECT_EQ(text.find("ELIXIR_TEST_CHANGED=old"), std::string::npos);
}

TEST(SubprocessTest, TheChildHasNoDescriptorOfOurs) {
  // Not even one that lacks O_CLOEXEC, as those that a shell passes on do.
  const UniqueFd inherited(::open("/dev/null", O_RDONLY));
  const std::string text = output_of("ls /proc/self/fd | wc -l");
  EXPECT_EQ(std::stoi(text), 4);  // 0, 1, 2 and ls's own of the folder
}

// SIGPIPE is signal 13.
TEST(SubprocessTest, TheChildBlocksNoSignalAndIgnoresThoseThatWeIgnore) {
  sigset_t set, before;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &set, &before);
  ::signal(SIGPIPE, SIG_IGN);
  const std::string text = output_of("grep -E '^Sig(Blk|Ign)' /proc/self/status");
  ::signal(SIGPIPE, SIG_DFL);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(text, "SigBlk:\t0000000000000000\nSigIgn:\t0000000000001000\n");
}

TEST(SubprocessTest, ASessionOfItsOwn) {
  SpawnOptions options;
  options.argv = {"sleep", "60"};
  options.new_session = true;
  const Result<pid_t> child = spawn(options);
  ASSERT_TRUE(child.ok());
  EXPECT_EQ(::getsid(*child), *child);
  EXPECT_EQ(::kill(-*child, SIGKILL), 0);
  EXPECT_EQ(exit_code_of(*child), 128 + SIGKILL);
}

// Spawns through a process in between, which then ends; returns the grandchild.
pid_t orphan(int parent_death_signal) {
  Pipe pipe;
  const pid_t between = ::fork();
  if (between == 0) {
    SpawnOptions options;
    options.argv = {"sleep", "60"};
    options.parent_death_signal = parent_death_signal;
    const Result<pid_t> child = spawn(options);
    const pid_t pid = child.ok() ? *child : -1;
    ::_exit(::write(pipe.write_end.get(), &pid, sizeof pid) == sizeof pid ? 0 : 1);
  }
  pid_t pid = -1;
  EXPECT_EQ(::read(pipe.read_end.get(), &pid, sizeof pid), static_cast<ssize_t>(sizeof pid));
  EXPECT_EQ(exit_code_of(between), 0);
  return pid;
}

TEST(SubprocessTest, TheChildDiesWithItsParentWhenAsked) {
  const pid_t bound = orphan(SIGKILL);
  ASSERT_GT(bound, 0);
  EXPECT_TRUE(test::eventually([&] { return test::gone(bound); }));

  // The control: without it the child stays.
  const pid_t free = orphan(0);
  ASSERT_GT(free, 0);
  // Its parent is reaped, after which a signal would have woken it for good.
  EXPECT_TRUE(test::eventually([&] { return test::asleep(free); }));
  ::kill(free, SIGKILL);
}

TEST(SubprocessTest, RunsToTheEndAndKeepsTheOutput) {
  const ProgramRun run =
      must(run_to_end({.argv = {"sh", "-c", "echo one; echo two; exit 3"}, .extra_environment = {}},
                      test::kPatienceS));
  EXPECT_EQ(run.output, "one\ntwo\n");
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_FALSE(run.timed_out);
  EXPECT_EQ(must(run_to_end({.argv = {"sh", "-c", "kill -9 $$"}, .extra_environment = {}},
                            test::kPatienceS))
                .exit_code,
            128 + SIGKILL);
  EXPECT_FALSE(run_to_end({.argv = {"/no/such/program"}, .extra_environment = {}}, 1).ok());
}

TEST(SubprocessTest, ARunBeyondItsLimitIsKilled) {
  const ProgramRun run = must(run_to_end(
      {.argv = {"sh", "-c", "echo began; exec sleep 1000"}, .extra_environment = {}}, 0));
  EXPECT_TRUE(run.timed_out);
  EXPECT_EQ(run.exit_code, 128 + SIGKILL);
}

TEST(SubprocessTest, AnInterruptEndsTheRunToo) {
  struct Interrupted {};
  set_interrupt([] { throw Interrupted(); });
  EXPECT_THROW(must(run_to_end({.argv = {"sleep", "1000"}, .extra_environment = {}}, 1e6)),
               Interrupted);
  set_interrupt({});
}

TEST(SubprocessTest, FindsProgramsOfElixirBesideThisOneOrInBin) {
  EXPECT_EQ(installed_program("no-such-program"), "");
  const std::string name = std::filesystem::read_symlink("/proc/self/exe").filename().string();
  EXPECT_EQ(installed_program(name), program_folder() + "/" + name);
}

TEST(SubprocessTest, KnowsItsOwnFolder) {
  EXPECT_TRUE(std::filesystem::exists(program_folder() + "/base_test"));
  EXPECT_EQ(library_folder(), program_folder());  // Elixir is linked into this program
}

}  // namespace
}  // namespace elixir
