// The status client, its text, and elixirctl as a program, against a ROUTER in this process.

#include <signal.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/version.h"
#include "ctl/status_client.h"
#include "ctl/status_legend.h"
#include "ctl/status_text.h"
#include "shm/attach_socket.h"
#include "shm/layout.h"
#include "shm/runtime_folder.h"
#include "tests/ctl/fake_daemon.h"
#include "tests/ctl/run_program.h"
#include "tests/support/matchers.h"
#include "tests/support/patience.h"
#include "tests/support/unwrapped.h"

namespace elixir::ctl {
namespace {

const std::string kAnswer = fmt::format(R"({{
  "daemon": {{"pid": 4242, "version": "{}", "layout_version": {},)",
                                        kVersion, shm::kLayoutVersion) +
                            R"("uptime_s": 3725.5, "threads_by_node": {"0": 4, "1": 3},
             "page_bytes": 2097152, "bandwidth_gb_s": 70.25},
  "jobs": [{"id": 7, "job": "run-1-0", "ranks": 2, "world_size": 4,
    "exchange": "collective", "dtype": "bf16", "chunks": 14, "gpu_chunks": 3,
    "chunk_numel": 262144, "waste_ratio": 0.031, "host_bytes": 52428800,
    "host_bytes_per_param": 16.0625,
    "bytes_by_kind": {"control": 8192, "grads": 1048576, "params": 2097152, "state": 3145728,
      "sums": 4096, "swing": 8192},
    "params": 3264512, "steps_done": 120, "update_mparam_s": 812.34, "update_mparam_s_mean": 790.1,
    "update_fraction_of_bandwidth": 0.543, "queue_depth": 3, "gathers_last_step": 24,
    "evictions_last_step": 10, "h2d_bytes_last_step": 1024, "d2h_bytes_last_step": 2048,
    "d2d_bytes": 0, "step_ms": 250.04, "exposed_ms": 12.5, "h2d_ms": 80, "d2h_ms": 81.25,
    "update_ms": 40, "grad_norm": 1.23456, "grad_scale": 0.5, "applied": 118, "skipped": 2,
    "swing_chunks": 5, "spare_slots": 4, "early_chunks_last_step": 4, "early_hits_last_step": 0, "early_chunks": 400,
    "early_hits": 396, "device_bytes": 4096, "pageable_bytes": 0, "loss_last_step": 2.41, "pids": [11, 12], "state": "training",
    "checkpoints": {"published": 3, "failed": 1, "dropped": 2, "step": 120, "done_bytes": 1048576,
      "bytes": 4194304, "stall_ms_last": 1.5, "write_s_last": 12.25,
      "error_last": "no space is left"}}]})";

class StatusTest : public ::testing::Test {
 protected:
  // The exit code; what it printed is in output_.
  int ctl(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), ELIXIRCTL);
    const Ended ended = run_program(std::move(arguments), environment_);
    output_ = ended.out + ended.err;
    return ended.code;
  }

  const TemporaryFolder temporary_;
  const shm::RuntimeFolder folder_{temporary_.path()};
  const std::vector<std::string> environment_ = {"ELIXIR_RUNTIME_DIR=" + temporary_.path()};
  std::string output_;
};

TEST_F(StatusTest, TheAnswerArrivesAsItWasSent) {
  const FakeDaemon daemon(folder_.status_endpoint(), {kAnswer});
  StatusClient client(folder_.status_endpoint());
  for (int i = 0; i < 3; ++i) {
    const std::string answer = must(client.request());
    EXPECT_EQ(answer, kAnswer);
  }
}

TEST_F(StatusTest, NobodyIsToldAtOnceWithARemedy) {
  expect_refused(StatusClient(folder_.status_endpoint()).request().status(), Code::kUnavailable,
                 {"elixir-run"});
}

TEST_F(StatusTest, ASilentDaemonIsADeadlineNotAHang) {
  const FakeDaemon daemon(folder_.status_endpoint(), {});
  const Result<std::string> answer = StatusClient(folder_.status_endpoint()).request(3000);
  expect_refused(answer.status(), Code::kTimedOut,
                 {folder_.status_socket(), fmt::format("pid {}", ::getpid()), "for 3000 ms"});
  EXPECT_EQ(daemon.requests(), 1);
}

TEST_F(StatusTest, ASocketThatADeadDaemonLeftIsToldAtOnce) {
  std::ofstream(folder_.status_socket()) << "";
  const Result<std::string> answer =
      StatusClient(folder_.status_endpoint()).request(test::kPatienceMs);
  EXPECT_EQ(answer.status().code(), Code::kUnavailable);
}

TEST_F(StatusTest, OtherAnswersAreRefused) {
  const std::vector<std::vector<std::string>> bad = {
      {"not json"}, {"[1]"}, {""}, {"{\"a\":"}, {kAnswer, "more"}};
  for (const std::vector<std::string>& frames : bad) {
    const FakeDaemon daemon(folder_.status_endpoint(), frames);
    const Result<std::string> answer = StatusClient(folder_.status_endpoint()).request();
    EXPECT_EQ(answer.status().code(), Code::kProtocol) << frames[0];
  }
}

TEST_F(StatusTest, AnAnswerBeyondTheLimitIsNotTaken) {
  const FakeDaemon daemon(folder_.status_endpoint(), {std::string(17 << 20, ' ') + "{}"});
  const Result<std::string> answer = StatusClient(folder_.status_endpoint()).request(500);
  EXPECT_EQ(answer.status().code(), Code::kTimedOut);
}

TEST_F(StatusTest, AnotherVersionIsSaidBesideWhatCanBeShown) {
  std::string other = kAnswer;
  other.replace(other.find(kVersion), std::string(kVersion).size(), "0.0.9\\u001b[2J");
  std::string layout = kAnswer;
  layout.replace(layout.find("layout_version"), 6, "LAYOUT");
  for (const std::string& answer : {other, layout}) {
    const FakeDaemon daemon(folder_.status_endpoint(), {answer});
    EXPECT_EQ(ctl({"status"}), 0);
    EXPECT_THAT(output_,
                AllOf(HasSubstr("2.41"), HasSubstr("restart elixird"), Not(HasSubstr("\x1b"))));
    EXPECT_EQ(ctl({"doctor"}), static_cast<int>(Code::kUnavailable));
    EXPECT_THAT(output_, HasSubstr("another version"));
  }
  const FakeDaemon daemon(folder_.status_endpoint(), {R"({"error": "unknown request"})"});
  EXPECT_EQ(ctl({"status"}), static_cast<int>(Code::kVersionMismatch));
  EXPECT_THAT(output_, HasSubstr("restart elixird"));
}

std::string shown(std::string_view answer) { return unwrapped(status_text(answer)); }

TEST(StatusTextTest, HasAtMost80Columns) {
  nlohmann::json answer = nlohmann::json::parse(kAnswer);
  nlohmann::json& job = answer["jobs"][0];
  for (const char* slow : {"pageable_bytes", "swapped_bytes", "off_node_bytes"})
    job[slow] = 3 << 20;
  answer["daemon"]["shares_processors_with"] = {{{"pid", 77}, {"processors", 1}}};
  answer["daemon"]["bandwidth_basis"] = "disturbed";
  std::istringstream lines(status_text(answer.dump()));
  size_t longest = 0;
  for (std::string line; std::getline(lines, line); longest = std::max(longest, line.size())) {
    EXPECT_LE(line.size(), 80u) << line;
  }
  EXPECT_GT(longest, 70u) << "lines are filled";
}

TEST(StatusLegendTest, ExplainsEveryLine) {
  nlohmann::json answer = nlohmann::json::parse(kAnswer);
  answer["jobs"][0]["waiting"] = {{{"rank", 2}, {"for", "step 7"}, {"since_s", 65}}};
  answer["jobs"][0]["lost_doorbells"] = 1;
  const std::string legend = status_legend();
  std::istringstream lines(status_text(answer.dump())), explained(legend);
  size_t names = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("  ") || line[2] == ' ') continue;
    std::string name = line.substr(0, 15);  // its column
    name.erase(name.find_last_not_of(' ') + 1);
    EXPECT_THAT(legend, HasSubstr("\n" + name + " ")) << line;
    ++names;
  }
  EXPECT_GT(names, 18u);
  for (std::string line; std::getline(explained, line);) EXPECT_LE(line.size(), 80u) << line;
}

TEST(StatusTextTest, SaysWhatTheBandwidthIsWorth) {
  EXPECT_THAT(shown(kAnswer), HasSubstr("70.2 GB/s in place, measured "));
  nlohmann::json answer = nlohmann::json::parse(kAnswer);
  answer["daemon"]["bandwidth_basis"] = "disturbed";
  EXPECT_THAT(shown(answer.dump()),
              HasSubstr("at least 70.2 GB/s in place: measured beside other work"));
  answer["daemon"]["bandwidth_basis"] = "update";
  EXPECT_THAT(shown(answer.dump()), HasSubstr("at least 70.2 GB/s in place: an update moved more"));
  answer["jobs"][0]["update_fraction_of_bandwidth"] = nullptr;
  EXPECT_THAT(shown(answer.dump()), HasSubstr("790.1 mean, in the processors' caches"));
}

TEST(StatusTextTest, SaysHowFarAReservationIs) {
  std::string answer = kAnswer;
  answer.insert(answer.find("\"id\": 7"), R"("filling_bytes": 1048576, "need_bytes": 52428800, )");
  EXPECT_THAT(shown(answer), HasSubstr("being reserved: 1.00 MiB of 50.00 MiB"));
}

TEST(StatusTextTest, SaysWhoWaitsForWhat) {
  EXPECT_EQ(shown(kAnswer).find("waiting"), std::string::npos);
  std::string answer = kAnswer;
  answer.insert(answer.find("\"id\": 7"),
                R"("waiting": [{"rank": 2, "for": "step 7 of ranks 0, 1", "since_s": 65.2}], )");
  EXPECT_THAT(shown(answer), HasSubstr("rank 2 for step 7 of ranks 0, 1, 1 min 5 s"));
}

TEST(StatusTextTest, ShowsWhatTheDaemonSays) {
  const std::string text = shown(kAnswer);
  for (const char* part :
       {"elixird 0.1.0, pid 4242, up 1 h 2 min", "0: 4, 1: 3", "2.00 MiB", "70.2",
        "job run-1-0 (7), training",
        "14 of 262144 elements, 3 placed on the GPU, bf16, 3.1 % waste",
        "2 of 4 here (pids 11, 12), collective exchange", "3.26 M",
        "50.00 MiB, 16.06 bytes a parameter",
        "control 8.00 KiB, grads 1.00 MiB, params 2.00 MiB, state 3.00 MiB, sums 4.00 KiB, "
        "swing 8.00 KiB",
        "5 of 14, updated on the device by its trainers", "120, loss 2.4100, queue depth 3",
        "4 of 14 chunks in the last step, 0 of them stood; 396 of 400",
        "812.3 Mparam/s now, 790.1 mean, 54.3 %",
        "24 gathers, 10 evictions, 1.00 KiB to the device, 2.00 KiB from it",
        "250.0 ms, 12.5 exposed, 80.0 up, 81.2 down, 40.0 update",
        "norm 1.235, scaled by 0.5, 118 steps applied, 2 skipped",
        "3 published, 1 failed, 2 dropped; step 120 under way, 25.0 %; last 12.2 s, stall 1.5 ms; "
        "LAST FAILURE: no space is left"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(StatusTextTest, SavesAreShownOnceThereWasOne) {
  nlohmann::json answer = nlohmann::json::parse(kAnswer);
  nlohmann::json& saves = answer["jobs"][0]["checkpoints"];
  saves["bytes"] = 0;  // none is under way
  saves["error_last"] = "";
  const std::string text = shown(answer.dump());
  EXPECT_THAT(text, HasSubstr("last that of step 120; last 12.2 s, stall 1.5 ms "));
  EXPECT_THAT(text, Not(HasSubstr("LAST FAILURE")));
  answer["jobs"][0].erase("checkpoints");
  EXPECT_THAT(shown(answer.dump()), Not(HasSubstr("published")));
}

TEST(StatusTextTest, MemoryThatCouldNotBePageLockedIsSaidLoudly) {
  EXPECT_THAT(shown(kAnswer), Not(HasSubstr("SLOW COPIES")));
  nlohmann::json answer = nlohmann::json::parse(kAnswer);
  answer["jobs"][0]["pageable_bytes"] = 3 << 20;
  EXPECT_THAT(shown(answer.dump()),
              HasSubstr("SLOW COPIES: 3.00 MiB of host memory could not be page-locked (elixirctl "
                        "doctor tells why)"));
}

TEST(StatusTextTest, MemoryThatIsFarAwayIsSaidLoudly) {
  nlohmann::json answer = nlohmann::json::parse(kAnswer);
  for (const int bytes : {0, 3 << 20}) {
    answer["jobs"][0]["swapped_bytes"] = bytes;
    answer["jobs"][0]["off_node_bytes"] = bytes;
    const std::string text = shown(answer.dump());
    for (const char* part : {"SLOW UPDATES: 3.00 MiB are swapped out",
                             "SLOW UPDATES: 3.00 MiB lie on another NUMA node"}) {
      EXPECT_EQ(text.find(part) != std::string::npos, bytes > 0) << text;
    }
  }
  answer["jobs"][0]["off_node_bytes"] = nullptr;  // the system does not tell
  EXPECT_THAT(shown(answer.dump()), Not(HasSubstr("NUMA node than")));
}

TEST(StatusTextTest, AbsentAndForeignFieldsDoNoHarm) {
  EXPECT_THAT(shown("{}"), HasSubstr("no jobs"));
  EXPECT_THAT(shown("not json"), HasSubstr("no jobs"));
  EXPECT_THAT(shown(R"({"jobs": [{}, 3, null, [], "x"]})"), HasSubstr("job -"));
  const std::string text = shown(
      R"({"daemon": {"version": "\u001b[2J", "threads_by_node": [2, 3], "page_bytes": -1,
          "uptime_s": 1e300, "bandwidth_gb_s": "fast"}, "jobs": 5})");
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(text, HasSubstr("0: 2, 1: 3"));
}

TEST(JobNamesTest, NamesEachJob) {
  EXPECT_EQ(job_names(kAnswer), std::vector<std::string>{"run-1-0"});
  EXPECT_EQ(job_names(R"({"jobs": [3, {"job": 4}]})").size(), 2u);
  EXPECT_TRUE(job_names("nonsense").empty());
}

TEST_F(StatusTest, TheProgramPrintsTextOrTheObject) {
  const FakeDaemon daemon(folder_.status_endpoint(), {kAnswer});
  EXPECT_EQ(ctl({"status"}), 0);
  EXPECT_EQ(output_, status_text(kAnswer));
  EXPECT_EQ(ctl({"status", "--json", "--runtime-dir", folder_.path}), 0);
  EXPECT_EQ(output_, kAnswer + "\n");
}

std::string answer_of(const std::string& launch, const std::string& folder, double uptime_s) {
  const nlohmann::json daemon = {
      {"version", kVersion},  {"layout_version", shm::kLayoutVersion},
      {"launch", launch},     {"runtime_dir", folder},
      {"uptime_s", uptime_s}, {"memory_group", "/job"},
      {"processors", 2},      {"shares_processors_with", {{{"pid", 77}, {"processors", 1}}}}};
  return nlohmann::json{{"daemon", daemon}, {"jobs", nlohmann::json::array()}}.dump();
}

TEST(SortAnswersTest, ServicesComeFirstAndOfEachTheNewest) {
  const std::string old_launch = answer_of("run-1", "/a", 50), launch = answer_of("run-2", "/b", 5),
                    service = answer_of("", "/c", 100), young_service = answer_of("", "/d", 60);
  std::vector<std::string> answers = {old_launch, launch, "[1]", service, young_service};
  sort_answers(&answers);
  EXPECT_THAT(answers, ElementsAre("[1]", young_service, service, launch, old_launch));
}

// Beside those of this test the machine may have others.
TEST_F(StatusTest, WithoutAFolderAllOfTheUserAreShown) {
  const std::string login = temporary_.path("login"), elsewhere = temporary_.path("elsewhere"),
                    silent = temporary_.path("silent");
  const std::vector<std::string> launch_folders = {login + "/elixir-launches/launch-1",
                                                   login + "/elixir-launches/launch-2"};
  struct Elixird {
    explicit Elixird(const std::string& launch, const std::string& folder, double uptime_s)
        : attach(must(shm::listen_attach(shm::RuntimeFolder{folder}.attach_socket()))),
          status(shm::RuntimeFolder{folder}.status_endpoint(),
                 {answer_of(launch, folder, uptime_s)}) {}
    UniqueFd attach;
    FakeDaemon status;
  };
  for (const std::string& folder :
       {launch_folders[0], launch_folders[1], login + "/elixir", elsewhere, silent}) {
    std::filesystem::create_directories(folder);
  }
  const auto listens = shm::listen_attach(shm::RuntimeFolder{silent}.attach_socket());
  ASSERT_TRUE(listens.ok());
  const Elixird old_launch("run-1", launch_folders[0], 50), launch("run-2", launch_folders[1], 5),
      service("", login + "/elixir", 100), named("", elsewhere, 60);
  const std::vector<std::string> environment = {"ELIXIR_RUNTIME_DIR=", "XDG_RUNTIME_DIR=" + login};
  const auto run = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), ELIXIRCTL);
    const Ended ended = run_program(std::move(arguments), environment);
    return ended;
  };
  const Ended shown = run({"status"});
  const std::string text = shown.out, json = run({"status", "--json"}).out;
  // One that does not answer hides no other.
  EXPECT_EQ(shown.code, static_cast<int>(Code::kUnavailable));
  EXPECT_THAT(shown.err, HasSubstr(silent));

  size_t before = 0, before_json = 0;
  for (const std::string& folder :
       {elsewhere, login + "/elixir", launch_folders[1], launch_folders[0]}) {
    const size_t at = text.find("folder        " + folder + "\n");
    ASSERT_NE(at, std::string::npos) << folder << "\n" << text;
    EXPECT_GT(at, before);
    before = at;
    const size_t at_json = json.find("\"runtime_dir\":\"" + folder + "\"");
    ASSERT_NE(at_json, std::string::npos) << json;
    EXPECT_GT(at_json, before_json);
    before_json = at_json;
  }
  for (const char* part :
       {"serves        launch run-2\n", "serves        all launches", "cgroup /job",
        "2; SHARED: 1 of them with elixird pid 77", "elixirctl status --runtime-dir FOLDER"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  const Ended one = run({"status", "--json", "--runtime-dir", elsewhere});
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_EQ(one.out, answer_of("", elsewhere, 60) + "\n");
}

TEST_F(StatusTest, TheProgramsExitCodes) {
  EXPECT_EQ(ctl({"status"}), static_cast<int>(Code::kUnavailable));
  EXPECT_THAT(output_, HasSubstr("elixir-run"));
  EXPECT_EQ(ctl({"status", "--jsn"}), 2);
  EXPECT_THAT(output_, HasSubstr("--json"));
  EXPECT_EQ(ctl({"statsu"}), 2);
  EXPECT_THAT(output_, HasSubstr("status"));
  EXPECT_EQ(ctl({}), 2);
  EXPECT_EQ(ctl({"--help"}), 0);
  EXPECT_EQ(ctl({"--version"}), 0);
}

TEST_F(StatusTest, WatchSurvivesADaemonThatComesAndGoes) {
  const std::string path = temporary_.write("output", "");
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  const pid_t watcher = must(spawn({.argv = {ELIXIRCTL, "status", "--watch", "--json"},
                                    .extra_environment = environment_,
                                    .stdout_fd = file.get(),
                                    .stderr_fd = file.get()}));
  const auto says = [&](const std::string& text) {
    return test::eventually([&] {
      std::ifstream output(path);
      return std::string(std::istreambuf_iterator<char>(output), {}).find(text) !=
             std::string::npos;
    });
  };
  EXPECT_TRUE(says("waiting:"));
  for (const char* name : {"first", "second"}) {
    const FakeDaemon daemon(folder_.status_endpoint(),
                            {fmt::format(R"({{"daemon": {{"version": "{}"}}}})", name)});
    EXPECT_TRUE(says(name)) << name;
  }
  ::kill(watcher, SIGINT);
  int status = 0;
  ASSERT_EQ(::waitpid(watcher, &status, 0), watcher);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace elixir::ctl
