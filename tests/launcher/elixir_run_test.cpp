// elixir-run as a program, with a stand-in for elixird.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/subprocess.h"
#include "shm/attach_socket.h"
#include "shm/find_daemon.h"
#include "shm/runtime_folder.h"
#include "tests/ctl/fake_daemon.h"
#include "tests/support/patience.h"
#include "tests/support/temporary_folder.h"

namespace elixir {
namespace {

using test::eventually;
using test::gone;
using ::testing::HasSubstr;

class ElixirRunTest : public ::testing::Test {
 protected:
  ElixirRunTest() { runtime_.path = folder_.path("run"); }
  ~ElixirRunTest() override {
    for (pid_t pid : daemons()) ::kill(pid, SIGKILL);
  }

  pid_t start(std::vector<std::string> arguments, std::vector<std::string> environment = {}) {
    SpawnOptions options;
    options.argv = {ELIXIR_RUN, "--runtime-dir", runtime_.path};
    options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
    options.extra_environment = {"ELIXIRD=" STANDIN_ELIXIRD};
    options.extra_environment.insert(options.extra_environment.end(), environment.begin(),
                                     environment.end());
    output_.reset(::open(folder_.path("output").c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600));
    options.stdout_fd = output_.get();
    options.stderr_fd = output_.get();
    const Result<pid_t> child = spawn(options);
    EXPECT_TRUE(child.ok());
    return *child;
  }
  static int wait_for(pid_t child) {
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  int run(std::vector<std::string> arguments, std::vector<std::string> environment = {}) {
    return wait_for(start(std::move(arguments), std::move(environment)));
  }
  std::string output() const {
    std::ifstream file(folder_.path("output"));
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  // Every stand-in that was started in the runtime folder.
  std::vector<pid_t> daemons() const {
    std::ifstream file(runtime_.path + "/standin.pids");
    std::vector<pid_t> pids;
    for (std::string line; std::getline(file, line);) pids.push_back(std::stoi(line));
    return pids;
  }
  bool says(const std::string& words) const { return output().find(words) != std::string::npos; }
  // What each of two ranks says in the end, the rank's prefix before it.
  bool both_say(const std::string& words) const {
    return eventually([&] {
      const std::string said = output();
      return said.find("[rank 0] " + words) != said.npos &&
             said.find("[rank 1] " + words) != said.npos;
    });
  }
  // As two ranks have written them, who say what they are then.
  std::vector<pid_t> rank_pids() const {
    std::vector<pid_t> pids(2);
    for (const int rank : {0, 1}) {
      std::ifstream(fmt::format("{}/{}.pid", runtime_.path, rank)) >> pids[rank];
      EXPECT_GT(pids[rank], 0);  // else the test's own group would be killed
    }
    return pids;
  }

  const TemporaryFolder folder_;
  shm::RuntimeFolder runtime_;
  UniqueFd output_;
};

TEST_F(ElixirRunTest, StartsADaemonAndLeavesNothing) {
  EXPECT_EQ(run({"-n", "2", "--daemon-arg=--workers=1", "sh", "-c", "echo $RANK of $WORLD_SIZE"}),
            0);
  EXPECT_THAT(output(), HasSubstr("[rank 0] 0 of 2\n"));
  EXPECT_THAT(output(), HasSubstr("[rank 1] 1 of 2\n"));
  ASSERT_EQ(daemons().size(), 1u);
  EXPECT_TRUE(gone(daemons()[0]));
  std::ifstream file(runtime_.path + "/standin.pids");
  std::string line;
  std::getline(file, line);
  EXPECT_THAT(line, HasSubstr("--workers=1"));
}

TEST_F(ElixirRunTest, AdoptsADaemonThatIsThereAndLeavesIt) {
  ::setenv("ELIXIRD", STANDIN_ELIXIRD, 1);
  const auto folder = shm::open_runtime_folder(runtime_.path);
  ASSERT_TRUE(folder.ok());
  const auto daemon = shm::find_or_start_daemon({.own = *folder}, {});
  ASSERT_TRUE(daemon.ok()) << daemon.status().message();
  EXPECT_EQ(run({"-n", "2", "true"}), 0);
  EXPECT_EQ(daemons(), std::vector<pid_t>{daemon->pid});
  EXPECT_TRUE(shm::daemon_listens(*folder));
  ::kill(daemon->pid, SIGTERM);
  ::waitpid(daemon->pid, nullptr, 0);
}

// Two launches of one user, without a folder that anybody named.
TEST_F(ElixirRunTest, EachLaunchHasAnElixirdOfItsOwnOrTheService) {
  const std::vector<std::string> nothing_named = {"XDG_RUNTIME_DIR=" + folder_.path(),
                                                  "ELIXIR_RUNTIME_DIR="};
  const auto folder_of_a_run = [&] {
    output_.reset(::open(folder_.path("output").c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600));
    SpawnOptions options{.argv = {ELIXIR_RUN, "sh", "-c",
                                  "cat $ELIXIR_RUNTIME_DIR/standin.pids >&2; "
                                  "echo $ELIXIR_RUNTIME_DIR"},
                         .extra_environment = nothing_named,
                         .stdout_fd = output_.get()};
    options.extra_environment.push_back("ELIXIRD=" STANDIN_ELIXIRD);
    EXPECT_EQ(wait_for(*spawn(options)), 0);
    const std::string said = output();
    return said.substr(0, said.find('\n'));
  };
  const std::string first = folder_of_a_run(), second = folder_of_a_run();
  EXPECT_THAT(first, ::testing::StartsWith(folder_.path("elixir-launches/launch-")));
  EXPECT_THAT(second, ::testing::StartsWith(folder_.path("elixir-launches/launch-")));
  EXPECT_NE(first, second);
  for (const std::string& folder : {first, second}) {
    std::ifstream file(folder + "/standin.pids");
    pid_t pid = -1;
    file >> pid;
    EXPECT_TRUE(gone(pid)) << folder;
  }
  const shm::RuntimeFolder service{folder_.path("elixir")};
  std::filesystem::create_directory(service.path);
  const auto listener = shm::listen_attach(service.attach_socket());
  ASSERT_TRUE(listener.ok());
  EXPECT_EQ(folder_of_a_run(), service.path);
}

// While another starts elixird, as far as anybody can tell.
TEST_F(ElixirRunTest, ASignalEndsItBeforeThereIsAnElixird) {
  std::filesystem::create_directory(runtime_.path);
  std::filesystem::permissions(runtime_.path, std::filesystem::perms::owner_all);
  const UniqueFd lock(::open(runtime_.start_lock_file().c_str(), O_RDWR | O_CREAT, 0600));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
  const pid_t launcher = start({"-n", "1", "true"});
  // It blocks signals before it waits: earlier ones kill it, which is the same to a shell.
  EXPECT_TRUE(eventually([launcher] {
    std::ifstream file(fmt::format("/proc/{}/status", launcher));
    std::string word;
    while (word != "SigBlk:" && file >> word) continue;
    uint64_t blocked = 0;
    return file >> std::hex >> blocked && (blocked >> (SIGTERM - 1) & 1) != 0;
  }));
  ::kill(launcher, SIGTERM);
  EXPECT_EQ(wait_for(launcher), 128 + SIGTERM);
  EXPECT_THAT(daemons(), ::testing::IsEmpty());
}

// One elixir-run a node, here both on this machine, each with its elixird.
TEST_F(ElixirRunTest, StartsItsNodesRanksOfAJobOverSeveral) {
  const std::vector<std::string> flags = {
      "-n",    "2",        "--nnodes", "2",          "--master-addr", "node-a", "--master-port",
      "29500", "--job-id", "17",       "--node-rank"};
  const std::string script =
      "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $ELIXIR_JOB "
      "$MASTER_ADDR:$MASTER_PORT";
  for (const std::string node : {"0", "1"}) {
    std::vector<std::string> arguments = flags;
    arguments.insert(arguments.end(), {node, "sh", "-c", script});
    EXPECT_EQ(run(arguments), 0);
    for (int local = 0; local < 2; ++local) {
      const int rank = 2 * std::stoi(node) + local;
      EXPECT_THAT(output(),
                  HasSubstr(fmt::format("[rank {}] {}/4 {}/2 nodes-node-a:29500-17-0 node-a:29500",
                                        rank, rank, local)));
    }
  }
}

TEST_F(ElixirRunTest, EverythingAfterTheProgramBelongsToIt) {
  EXPECT_EQ(run({"sh", "-c", "echo got $0 $@", "-n", "2", "--help", "--no-such-flag"}), 0);
  EXPECT_EQ(output(), "got -n 2 --help --no-such-flag\n");  // one rank: no prefix
}

TEST_F(ElixirRunTest, TheExitCodeIsTheFirstFailures) {
  EXPECT_EQ(run({"-n", "3", "sh", "-c", "[ $RANK = 2 ] && exit 33; sleep 60"}), 33);
  EXPECT_THAT(output(), HasSubstr("elixir-run: rank 2"));
  EXPECT_EQ(run({"-n", "2", "sh", "-c", "[ $RANK = 0 ] && kill -KILL $$; sleep 60"}),
            128 + SIGKILL);
}

TEST_F(ElixirRunTest, RestartsAsAJobOfItsOwn) {
  const std::string script =
      "echo job $ELIXIR_JOB restart $TORCHELASTIC_RESTART_COUNT; "
      "[ $TORCHELASTIC_RESTART_COUNT = 2 ] || exit 5";
  EXPECT_EQ(run({"-n", "2", "--max-restarts", "3", "sh", "-c", script}), 0);
  EXPECT_THAT(output(), HasSubstr("restart 1 of 3"));
  EXPECT_THAT(output(), HasSubstr("restart 2 of 3"));
  EXPECT_THAT(output(), ::testing::Not(HasSubstr("restart 3 of 3")));
  EXPECT_EQ(run({"--max-restarts", "1", "sh", "-c", "exit 5"}), 5);
}

TEST_F(ElixirRunTest, RestartsNeitherWhatWouldFailAgainNorWhatWasToldToStop) {
  EXPECT_EQ(run({"-n", "2", "--max-restarts", "3", "sh", "-c", "exit 11"}), 11);
  EXPECT_THAT(output(), HasSubstr("no restart, because it would end with exit code 11 too\n"));
  EXPECT_THAT(output(), ::testing::Not(HasSubstr("starting all")));
  EXPECT_EQ(run({"-n", "2", "--max-restarts", "3", "sh", "-c", "exit 143"}), 143);
  EXPECT_THAT(output(), HasSubstr("ended after SIGTERM"));
  EXPECT_THAT(output(), ::testing::Not(HasSubstr("starting all")));
}

TEST_F(ElixirRunTest, ADaemonThatDiedIsStartedAgainForTheNextAttempt) {
  const std::string script =
      "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; pid=$(cut -d' ' -f1 "
      "$ELIXIR_RUNTIME_DIR/standin.pids); kill -KILL $pid; "
      "while grep -qsv ') Z ' /proc/$pid/stat; do sleep 0.01; done; exit 5";
  EXPECT_EQ(run({"--max-restarts", "1", "sh", "-c", script}), 0);
  EXPECT_EQ(daemons().size(), 2u);
}

TEST_F(ElixirRunTest, AnInterruptEndsAll) {
  const pid_t launcher = start({"-n", "2", "sh", "-c", "echo pid $$; exec sleep 60"});
  ASSERT_TRUE(both_say("pid"));
  ::kill(launcher, SIGINT);
  EXPECT_EQ(wait_for(launcher), 128 + SIGINT);
  EXPECT_TRUE(gone(daemons().at(0)));
}

TEST_F(ElixirRunTest, WhoIgnoresAnInterruptHasTheGraceThatWasGiven) {
  const pid_t launcher =
      start({"-n", "2", "--grace", "0.1", "sh", "-c", "trap '' INT TERM; echo deaf; sleep 60"});
  ASSERT_TRUE(both_say("deaf"));
  ::kill(launcher, SIGINT);
  EXPECT_EQ(wait_for(launcher), 128 + SIGKILL);
}

TEST_F(ElixirRunTest, ASignalToSaveReachesTheRanksAndEndsNothing) {
  const pid_t launcher = start({"-n", "2", "--save-signal-stops", "sh", "-c",
                                "trap 'echo saved, stops: $ELIXIR_SAVE_SIGNAL_STOPS; exit 0' USR1; "
                                "echo ready; sleep 60 & wait"});
  ASSERT_TRUE(both_say("ready"));
  ::kill(launcher, SIGUSR1);
  EXPECT_EQ(wait_for(launcher), 0);
  EXPECT_THAT(output(), HasSubstr("[rank 0] saved, stops: 1\n"));
  EXPECT_THAT(output(), HasSubstr("[rank 1] saved, stops: 1\n"));
}

// However elixird and the ranks end, the next attempt has an elixird of its own.
TEST_F(ElixirRunTest, EverythingKilledAtOnceIsStartedAgain) {
  const pid_t launcher = start({"-n", "2", "--max-restarts", "2", "sh", "-c",
                                "echo $$ >$ELIXIR_RUNTIME_DIR/$RANK.pid; "
                                "echo attempt $TORCHELASTIC_RESTART_COUNT; "
                                "[ $TORCHELASTIC_RESTART_COUNT = 2 ] || exec sleep 60"});
  for (const std::string attempt : {"0", "1"}) {
    ASSERT_TRUE(both_say("attempt " + attempt));
    std::vector<pid_t> pids = rank_pids();
    pids.push_back(daemons().back());
    ASSERT_FALSE(HasFailure());
    for (const pid_t pid : pids) ::kill(pid, SIGKILL);
  }
  EXPECT_EQ(wait_for(launcher), 0);
  EXPECT_EQ(daemons().size(), 3u);
}

TEST_F(ElixirRunTest, WhenTheLauncherIsKilledRanksAndDaemonEnd) {
  const pid_t launcher = start(
      {"-n", "2", "sh", "-c", "echo $$ >$ELIXIR_RUNTIME_DIR/$RANK.pid; echo here; exec sleep 60"});
  ASSERT_TRUE(both_say("here"));
  std::vector<pid_t> pids = rank_pids();
  ::kill(launcher, SIGKILL);
  wait_for(launcher);
  pids.push_back(daemons().at(0));
  for (pid_t pid : pids) EXPECT_TRUE(eventually([pid] { return gone(pid); })) << pid;
}

TEST_F(ElixirRunTest, ADaemonThatDoesNotComeUpIsExplained) {
  EXPECT_EQ(run({"true"}, {"STANDIN_FAIL=1"}), static_cast<int>(Code::kUnavailable));
  EXPECT_THAT(output(), HasSubstr("standin: told to fail"));
  EXPECT_THAT(output(), HasSubstr(runtime_.log_file()));
}

TEST_F(ElixirRunTest, BadCommandLinesAreExplained) {
  EXPECT_EQ(run({"--max-restart", "1", "true"}), 2);
  EXPECT_THAT(output(), HasSubstr("--max-restarts"));
  EXPECT_EQ(run({}), 2);
  EXPECT_THAT(output(), HasSubstr("PROGRAM"));
  EXPECT_EQ(run({"elixir-runn"}), 2);
  EXPECT_THAT(output(), HasSubstr("did you mean 'elixir-run'"));
  EXPECT_EQ(run({"-n", "0", "true"}), 2);
  EXPECT_EQ(run({"-n", "65", "true"}), 2);
  EXPECT_EQ(run({"--nnodes", "2", "true"}), 2);
  EXPECT_THAT(output(), HasSubstr("--node-rank"));
  EXPECT_EQ(run({"--master-port", "65536", "true"}), 2);
  EXPECT_EQ(run({"--node-rank", "-1", "true"}), 2);
  EXPECT_TRUE(daemons().empty()) << "a daemon was started for nothing";
}

// A job of another launch that adopted the daemon is not cut off with ours.
TEST_F(ElixirRunTest, WaitsForOtherJobsBeforeItStopsItsDaemon) {
  ASSERT_TRUE(shm::open_runtime_folder(runtime_.path).ok());
  pid_t launcher = -1;
  {
    const ctl::FakeDaemon other(runtime_.status_endpoint(), {R"({"jobs": [{"job": "x"}]})"});
    launcher = start({"true"});
    EXPECT_TRUE(eventually([&] { return says("still serves other jobs"); })) << output();
    EXPECT_TRUE(eventually([&] { return other.requests() > 2; }));
    EXPECT_EQ(::waitpid(launcher, nullptr, WNOHANG), 0);
    EXPECT_FALSE(gone(daemons().at(0)));
  }
  EXPECT_EQ(wait_for(launcher), 0);
  EXPECT_TRUE(gone(daemons().at(0)));
}

// One that is late with its answer is not one without other jobs.
TEST_F(ElixirRunTest, AsksAgainForOtherJobsBeforeItStopsItsDaemon) {
  ASSERT_TRUE(shm::open_runtime_folder(runtime_.path).ok());
  const ctl::FakeDaemon other(runtime_.status_endpoint(), {R"({"jobs": [{"job": "x"}]})"},
                              /*unanswered=*/1);
  const pid_t launcher = start({"true"});
  EXPECT_TRUE(eventually([&] { return says("still serves other jobs"); })) << output();
  EXPECT_TRUE(eventually([&] { return other.requests() > 2; }));
  EXPECT_FALSE(gone(daemons().at(0)));
  ::kill(launcher, SIGINT);  // it cuts the wait short
  EXPECT_EQ(wait_for(launcher), 0);
  EXPECT_TRUE(gone(daemons().at(0)));
}

TEST_F(ElixirRunTest, AReaderThatGoesAwayEndsTheRanks) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  SpawnOptions options;
  options.argv = {ELIXIR_RUN, "--runtime-dir", runtime_.path, "-n", "2", "yes"};
  options.extra_environment = {"ELIXIRD=" STANDIN_ELIXIRD};
  options.stdout_fd = ends[1];
  const Result<pid_t> launcher = spawn(options);
  ASSERT_TRUE(launcher.ok());
  ::close(ends[1]);
  char bytes[64];
  EXPECT_GT(::read(ends[0], bytes, sizeof bytes), 0);
  ::close(ends[0]);
  EXPECT_EQ(wait_for(*launcher), 128 + SIGPIPE);
}

}  // namespace
}  // namespace elixir
