#include "launcher/process_group.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

#include "tests/support/patience.h"
#include "tests/support/temporary_folder.h"

namespace elixir::launcher {
namespace {

// Ranks sleep, and graces are, longer than ctest lets the test run: who waits for their end hangs.
constexpr int kLongMs = 1'000'000;

class ProcessGroupTest : public ::testing::Test {
 protected:
  ProcessGroupTest() {
    char path[] = "/tmp/elixir-group-XXXXXX";
    output_.reset(::mkstemp(path));
    ::unlink(path);
  }

  GroupOptions shell(const std::string& script, int ranks) {
    GroupOptions options;
    options.argv = {"/bin/sh", "-c", script};
    for (int i = 0; i < ranks; ++i) {
      options.rank_environments.push_back({"RANK=" + std::to_string(i), "FILE=" + file_});
    }
    options.stdout_fd = output_.get();
    options.stderr_fd = output_.get();
    return options;
  }

  GroupOutcome run(GroupOptions options) {
    const SignalWatch signals;
    ProcessGroup group(std::move(options));
    const Status started = group.start();
    EXPECT_TRUE(started.ok()) << started.message();
    return group.wait(signals);
  }

  std::vector<std::string> lines() {
    std::string text(1 << 20, '\0');
    text.resize(static_cast<size_t>(::pread(output_.get(), text.data(), text.size(), 0)));
    std::istringstream stream(text);
    std::vector<std::string> result;
    for (std::string line; std::getline(stream, line);) result.push_back(line);
    return result;
  }

  int64_t times(const std::string& line) {
    const std::vector<std::string> all = lines();
    return std::count(all.begin(), all.end(), line);
  }
  bool says(const std::string& words) {
    const std::vector<std::string> all = lines();
    return std::any_of(all.begin(), all.end(),
                       [&](const std::string& line) { return line.find(words) != line.npos; });
  }

  // Sends this process a signal once the ranks have written so many lines, or have had the time to;
  // from a child, since this process will be waiting and must not have threads.
  void signal_after_lines(size_t count, int signal) {
    const pid_t test = ::getpid();
    if (::fork() != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    test::eventually([&] { return lines().size() >= count; });
    if (::getppid() == test) ::kill(test, signal);
    std::ofstream(file_) << signal;
    ::_exit(0);
  }

  static std::vector<pid_t> children() {
    std::ifstream file("/proc/thread-self/children");
    return {std::istream_iterator<pid_t>(file), {}};
  }

  UniqueFd output_;
  const TemporaryFolder folder_;
  const std::string file_ = folder_.path("file");  // $FILE: what ranks tell one another
};

TEST_F(ProcessGroupTest, AllEndWell) {
  const GroupOutcome outcome = run(shell("echo out; echo err >&2; printf last", 3));
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.failed_rank, -1);
  std::vector<std::string> got = lines();
  std::sort(got.begin(), got.end());
  std::vector<std::string> expected;
  for (const char* rank : {"0", "1", "2"}) {
    for (const char* text : {"err", "last", "out"}) {
      expected.push_back(std::string("[rank ") + rank + "] " + text);
    }
  }
  EXPECT_EQ(got, expected);
}

TEST_F(ProcessGroupTest, RanksOfALaterNodeAreCalledByTheirRank) {
  GroupOptions options = shell("echo out; [ $RANK = 1 ] && exit 7; exec sleep 1000", 2);
  options.first_rank = 4;
  EXPECT_EQ(run(std::move(options)).failed_rank, 1);
  EXPECT_EQ(times("[rank 5] out"), 1);
  EXPECT_TRUE(says("rank 5 (pid"));
}

TEST_F(ProcessGroupTest, LinesOfRanksAreNeverMixed) {
  const std::string script =
      "i=0; while [ $i -lt 300 ]; do printf 'begin %s ' $RANK; printf 'middle %s ' $RANK; "
      "echo end $RANK; i=$((i+1)); done";
  EXPECT_EQ(run(shell(script, 4)).exit_code, 0);
  const std::vector<std::string> got = lines();
  EXPECT_EQ(got.size(), 4u * 300u);
  for (const std::string& line : got) {
    const std::string rank = line.substr(6, 1);
    EXPECT_EQ(line, "[rank " + rank + "] begin " + rank + " middle " + rank + " end " + rank);
  }
}

TEST_F(ProcessGroupTest, FirstFailureEndsTheGroupWithItsExitCode) {
  const GroupOutcome outcome = run(shell("[ $RANK = 1 ] && exit 7; exec sleep 1000", 3));
  EXPECT_EQ(outcome.exit_code, 7);
  EXPECT_EQ(outcome.failed_rank, 1);
  EXPECT_LE(GroupOptions().failure_grace_ms, 1000);
}

TEST_F(ProcessGroupTest, ARankThatIgnoresSigtermIsKilled) {
  GroupOptions options = shell(
      "if [ $RANK = 1 ]; then until [ -s $FILE ]; do sleep 0.01; done; exit 7; fi; "
      "trap '' TERM; echo deaf >$FILE; sleep 1000",
      2);
  options.failure_grace_ms = 100;
  EXPECT_EQ(run(std::move(options)).exit_code, 7);
}

// In good order: it goes on, and hears the signal.
TEST_F(ProcessGroupTest, AStoppedRankIsEndedToo) {
  GroupOptions options = shell(
      "if [ $RANK = 1 ]; then until [ -s $FILE ]; do sleep 0.01; done; "
      "until grep -q ') T ' /proc/$(cat $FILE)/stat; do sleep 0.01; done; exit 9; fi; "
      "trap 'echo heard; exit 3' TERM; echo $$ >$FILE; kill -STOP $$; sleep 1000",
      2);
  options.failure_grace_ms = test::kPatienceMs;
  const GroupOutcome outcome = run(std::move(options));
  EXPECT_EQ(outcome.exit_code, 9);
  EXPECT_EQ(times("[rank 0] heard"), 1);
}

TEST_F(ProcessGroupTest, ASignalIsReportedAs128AndItsNumber) {
  const GroupOutcome outcome = run(shell("[ $RANK = 0 ] && kill -SEGV $$; exec sleep 1000", 2));
  EXPECT_EQ(outcome.exit_code, 128 + SIGSEGV);
  EXPECT_EQ(outcome.failed_rank, 0);
  EXPECT_TRUE(says("SIGSEGV"));
}

TEST_F(ProcessGroupTest, ChildrenOfARankDoNotOutliveIt) {
  GroupOptions options = shell("sleep 1000 & echo $!", 2);
  EXPECT_EQ(run(std::move(options)).exit_code, 0);
  const std::vector<std::string> got = lines();
  ASSERT_EQ(got.size(), 2u);
  for (const std::string& line : got) {
    const pid_t pid = std::stoi(line.substr(std::string("[rank 0] ").size()));
    EXPECT_NE(::kill(pid, 0), 0) << "process " << pid << " is left";
  }
}

TEST_F(ProcessGroupTest, AnInterruptReachesEveryRankOnce) {
  signal_after_lines(2, SIGINT);
  const GroupOutcome outcome =
      run(shell("trap 'echo got; exit 3' INT; echo ready; sleep 1000 & wait", 2));
  EXPECT_EQ(outcome.stop_signal, SIGINT);
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_EQ(times("[rank 0] got"), 1);
  EXPECT_EQ(times("[rank 1] got"), 1);
}

TEST_F(ProcessGroupTest, ARankThatIgnoresTheInterruptIsKilledAfterTheGrace) {
  GroupOptions options = shell("trap '' INT TERM; echo ready; sleep 1000", 2);
  options.stop_grace_ms = 100;
  signal_after_lines(2, SIGTERM);
  const GroupOutcome outcome = run(std::move(options));
  EXPECT_EQ(outcome.exit_code, 128 + SIGKILL);
}

TEST_F(ProcessGroupTest, ASecondInterruptDoesNotWaitForTheGrace) {
  GroupOptions options = shell("trap 'echo got' INT; echo ready; sleep 1000 & wait; wait", 2);
  options.stop_grace_ms = kLongMs;
  signal_after_lines(2, SIGINT);
  signal_after_lines(4, SIGINT);
  const GroupOutcome outcome = run(std::move(options));
  EXPECT_EQ(outcome.stop_signal, SIGINT);
  EXPECT_EQ(outcome.exit_code, 128 + SIGKILL);
}

// In the place of a program that has got a signal, and saves.
constexpr const char* kTellSaves =
    "printf s >/proc/self/fd/$(echo $ELIXIR_LAUNCHER_NOTE | cut -d: -f2); ";

TEST_F(ProcessGroupTest, ARankThatHasToldThatItSavesHasTheLongerGrace) {
  // It was told by somebody else before, as a control group's processes are.
  GroupOptions options = shell(
      std::string("trap 'echo got; exit 3' INT; ") + kTellSaves + "echo ready; sleep 1000 & wait",
      2);
  options.stop_grace_ms = 0;
  options.save_grace_ms = kLongMs;
  signal_after_lines(3, SIGINT);  // one a rank, and this process's own
  const GroupOutcome outcome = run(std::move(options));
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_EQ(times("[rank 0] got"), 1);
  EXPECT_EQ(times("[rank 1] got"), 1);
}

TEST_F(ProcessGroupTest, ThatARankSavesIsHeardAfterTheSignalAndASecondOneEndsIt) {
  GroupOptions options = shell(
      std::string("trap '") + kTellSaves + "echo saving' INT; echo ready; sleep 1000 & wait; wait",
      2);
  options.stop_grace_ms = options.save_grace_ms = kLongMs;
  signal_after_lines(2, SIGINT);
  signal_after_lines(5, SIGINT);  // two lines a rank, and this process's own
  const GroupOutcome outcome = run(std::move(options));
  EXPECT_EQ(outcome.exit_code, 128 + SIGKILL);
  EXPECT_EQ(times("elixir-run: the ranks save before they end, for which they have 1000 s "
                  "(--save-grace); a second signal ends them at once"),
            1);
}

// It was told by somebody else than this process, and so the others are.
TEST_F(ProcessGroupTest, ARankThatEndsBecauseOfASignalHasNotFailed) {
  GroupOptions options = shell(
      "if [ $RANK = 1 ]; then until [ -s $FILE ]; do sleep 0.01; done; exit 143; fi; "
      "trap 'echo saved; exit 143' TERM; echo ready >$FILE; sleep 1000 & wait",
      2);
  options.failure_grace_ms = 0;
  options.stop_grace_ms = kLongMs;
  const GroupOutcome outcome = run(std::move(options));
  EXPECT_EQ(outcome.stop_signal, SIGTERM);
  EXPECT_EQ(outcome.exit_code, 128 + SIGTERM);
  EXPECT_EQ(times("[rank 0] saved"), 1) << "it had the time that a stop gives";
  EXPECT_TRUE(says("ended after SIGTERM; stopping the others"));
}

TEST_F(ProcessGroupTest, ARankThatASignalKillsHasFailed) {
  const GroupOutcome outcome = run(shell("[ $RANK = 1 ] && kill -TERM $$; exec sleep 1000", 2));
  EXPECT_EQ(outcome.stop_signal, 0);
  EXPECT_EQ(outcome.exit_code, 128 + SIGTERM);
  EXPECT_TRUE(says("was killed by SIGTERM; stopping the others"));
}

// A shell ends so for the program behind it.
TEST_F(ProcessGroupTest, ARankThatExitsWithAnotherSignalsCodeHasFailed) {
  const GroupOutcome outcome = run(shell("[ $RANK = 1 ] && exit 137; exec sleep 1000", 2));
  EXPECT_EQ(outcome.stop_signal, 0);
  EXPECT_TRUE(says("ended with exit code 137; stopping the others"));
}

TEST(WouldFailAgain, WhatNoRestartChanges) {
  for (int code = 0; code < 256; ++code) {
    const bool again = code == 2 || code == 4 || code == 7 || code == 11;
    EXPECT_EQ(would_fail_again(code), again) << code;
  }
}

// A rank may be a script around the program: the signal is for both.
TEST_F(ProcessGroupTest, TheProgramBehindAShellGetsTheInterrupt) {
  const GroupOptions options =
      shell("sh -c 'trap \"echo got; exit 3\" INT; echo ready; sleep 1000 & wait'; exit 5", 2);
  signal_after_lines(2, SIGINT);
  run(options);
  EXPECT_EQ(times("[rank 0] got"), 1);
  EXPECT_EQ(times("[rank 1] got"), 1);
}

TEST_F(ProcessGroupTest, ASignalToSaveIsPassedOnAndEndsNothing) {
  const GroupOptions options =
      shell("trap 'echo saved; exit 0' USR1; echo ready; sleep 1000 & wait", 2);
  signal_after_lines(2, SIGUSR1);
  const GroupOutcome outcome = run(options);
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.stop_signal, 0);
  EXPECT_EQ(times("[rank 0] saved"), 1);
  EXPECT_EQ(times("[rank 1] saved"), 1);
}

// The default for that signal is to kill: a shell around the program is none of its business, and a
// program that is starting hears it once it can.
TEST_F(ProcessGroupTest, ASignalToSaveKillsNobodyAndWaitsForWhoIsStarting) {
  const GroupOptions options = shell(
      "sh -c 'echo ready; until [ -s $FILE ]; do sleep 0.01; done; "
      "trap \"echo saved; exit 0\" USR1; sleep 1000 & wait'; echo shell goes on",
      1);
  signal_after_lines(1, SIGUSR1);  // which then lies in the file
  EXPECT_EQ(run(options).exit_code, 0);
  EXPECT_EQ(lines(), (std::vector<std::string>{"[rank 0] ready", "[rank 0] saved",
                                               "[rank 0] shell goes on"}));
}

TEST_F(ProcessGroupTest, ASignalToSaveThatCameBeforeTheRanksReachesThem) {
  GroupOptions options = shell("trap 'echo saved; exit 0' USR1; sleep 1000 & wait", 2);
  options.save_asked = true;
  EXPECT_EQ(run(std::move(options)).exit_code, 0);
  EXPECT_EQ(lines().size(), 2u);
}

TEST_F(ProcessGroupTest, WithoutPrefixOutputIsUntouched) {
  GroupOptions options = shell("printf 'a\\rb'", 1);
  options.prefix = false;
  EXPECT_EQ(run(std::move(options)).exit_code, 0);
  EXPECT_EQ(lines(), std::vector<std::string>{"a\rb"});
}

TEST_F(ProcessGroupTest, AProgramThatCannotStartIsAnError) {
  GroupOptions options = shell("", 2);
  options.argv = {"/nonexistent/program"};
  const SignalWatch signals;
  ProcessGroup group(std::move(options));
  const Status status = group.start();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("/nonexistent/program"), std::string::npos);
}

// The healthy rank is often the first to end.
TEST_F(ProcessGroupTest, WhatTheLostPeerEndsWithIsTheCause) {
  // Rank 1 ends once the other one is reaped, and so seen.
  GroupOptions options = shell(
      "if [ $RANK = 0 ]; then echo $$ >$FILE; exit 6; fi; trap 'exit 1' TERM; "
      "until [ -s $FILE ]; do sleep 0.01; done; "
      "while kill -0 $(cat $FILE); do sleep 0.01; done; exit 70",
      2);
  options.cause_grace_ms = kLongMs;
  const GroupOutcome outcome = run(std::move(options));
  EXPECT_EQ(outcome.exit_code, 70);
  EXPECT_EQ(outcome.failed_rank, 1);
}

TEST_F(ProcessGroupTest, ALostPeerThatDoesNotEndIsNotWaitedForLong) {
  GroupOptions options = shell("[ $RANK = 0 ] && exit 6; exec sleep 1000", 2);
  options.cause_grace_ms = 200;
  const GroupOutcome outcome = run(std::move(options));
  EXPECT_EQ(outcome.exit_code, 6);
  EXPECT_EQ(outcome.failed_rank, 0);
}

// When one rank only reports that it lost a peer, the peer is the one to name, even if both are
// seen at once (here: both have ended before anybody looks).
TEST_F(ProcessGroupTest, TheRankThatLostAPeerIsNotTheFirstFailure) {
  GroupOptions options = shell("[ $RANK = 1 ] && exit 4; exit 6", 3);
  const SignalWatch signals;
  ProcessGroup group(std::move(options));
  ASSERT_TRUE(group.start().ok());
  for (const pid_t rank : children()) {
    siginfo_t ended{};
    ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(rank), &ended, WEXITED | WNOWAIT), 0);
  }
  const GroupOutcome outcome = group.wait(signals);
  EXPECT_EQ(outcome.failed_rank, 1);
  EXPECT_EQ(outcome.exit_code, 4);
}

}  // namespace
}  // namespace elixir::launcher
