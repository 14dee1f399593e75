// Rates of this machine: measured once, kept, and corrected by trainings.

#include "client/probe/first_probe.h"

#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "planner/machine_json.h"
#include "tests/planner/machines.h"
#include "tests/support/matchers.h"
#include "tests/support/patience.h"
#include "tests/support/temporary_folder.h"

namespace elixir::probe {
namespace {

using planner::ProbedMachine;

const std::string kHardware = "the CPU as device, 2 x Some Processor, 1 NUMA node";

// The CPU as device, and a program in elixir-probe's place that writes a line for each run.
class FirstProbeTest : public ::testing::Test {
 protected:
  FirstProbeTest() {
    ::unsetenv("ELIXIR_MACHINE_FILE");
    ::unsetenv("ELIXIR_PROBE");
    ::setenv("XDG_CACHE_HOME", folder_.path("cache").c_str(), 1);
    answer(rates("2031-01-01T00:00:00Z"));
  }
  ~FirstProbeTest() override {
    ::unsetenv("XDG_CACHE_HOME");
    ::unsetenv("ELIXIR_PROBE");
    ::unsetenv("ELIXIR_MACHINE_FILE");
  }

  static ProbedMachine rates(const std::string& date) {
    ProbedMachine probed = planner::testing::some_probe();
    probed.device = "cpu";
    probed.hardware = kHardware;
    probed.machine.probed = date;
    probed.machine.cpu_update_gparam_s_by_trainers.clear();
    return probed;
  }
  void answer(const ProbedMachine& probed) {
    program("cat " + folder_.write("answer.json", planner::to_json(probed)));
  }
  void program(const std::string& script) {
    const std::string path =
        folder_.write("probe", "#!/bin/sh\necho \"$@\" >> " + folder_.path("runs") + "\n" + script);
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }
  std::vector<std::string> runs() const {
    std::vector<std::string> lines;
    std::ifstream file(folder_.path("runs"));
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }
  Result<KnownMachine> ask(const std::string& job = "job", uint32_t devices = 2,
                           double limit_s = test::kPatienceS) {
    return load_or_measure({.hardware = kHardware,
                            .devices = devices,
                            .ranks = 2,
                            .job = job,
                            .limit_s = limit_s,
                            .program = folder_.path("probe")});
  }
  Result<KnownMachine> ask_alone(uint32_t devices = 1) {
    return load_or_measure({.hardware = kHardware,
                            .devices = devices,
                            .limit_s = test::kPatienceS,
                            .program = folder_.path("probe")});
  }

  const TemporaryFolder folder_;
};

TEST_F(FirstProbeTest, TheFirstStartMeasuresAndTheSecondDoesNot) {
  const KnownMachine first = must(ask());
  EXPECT_TRUE(first.correctable);
  EXPECT_EQ(first.probed.hardware, kHardware);
  EXPECT_EQ(first.probed.machine.dram_gb_s, 130);
  EXPECT_THAT(runs(), ElementsAre("--quick --device=cpu --gpus=2"));
  const KnownMachine second = must(ask("another job"));
  EXPECT_EQ(planner::to_json(second.probed), planner::to_json(first.probed));
  EXPECT_THAT(runs(), SizeIs(1));
  // elixirctl plan reads this one.
  EXPECT_TRUE(std::filesystem::exists(must(planner::machine_cache_path())));
}

TEST_F(FirstProbeTest, RanksThatStartTogetherMeasureOnce) {
  std::vector<std::thread> ranks;
  std::atomic<int> known{0};
  for (int i = 0; i < 4; ++i) ranks.emplace_back([&] { known += ask().ok(); });
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(known, 4);
  EXPECT_THAT(runs(), SizeIs(1));
}

TEST_F(FirstProbeTest, RatesOfOtherHardwareOrOfFewerDevicesAreNotUsed) {
  ProbedMachine other = rates("2032-01-01T00:00:00Z");
  other.hardware = "another card";
  must(planner::store_machine(must(planner::machine_cache_path()), other));
  must(ask_alone(2));
  EXPECT_THAT(runs(), SizeIs(1));
  ProbedMachine more = rates("2031-01-02T00:00:00Z");
  more.machine.gpus = 4;
  answer(more);
  EXPECT_EQ(must(ask_alone(4)).probed.machine.gpus, 4u);
  EXPECT_THAT(runs(), SizeIs(2));
  EXPECT_EQ(must(ask_alone(3)).probed.machine.gpus, 4u);
  EXPECT_THAT(runs(), SizeIs(2));
  // The other's file is not touched.
  EXPECT_EQ((*must(planner::load_machine(must(planner::machine_cache_path())))).hardware,
            "another card");
}

TEST_F(FirstProbeTest, ANamedFileIsUsedWhateverHardwareItIsOf) {
  ProbedMachine named = rates("");
  named.hardware = "another machine";
  named.machine.dram_gb_s = 77;
  const std::string path = folder_.path("named.json");
  must(planner::store_machine(path, named));
  ::setenv("ELIXIR_MACHINE_FILE", path.c_str(), 1);
  const KnownMachine known = must(ask("job", 8));
  EXPECT_EQ(known.probed.machine.dram_gb_s, 77);
  EXPECT_FALSE(known.correctable);
  EXPECT_THAT(runs(), IsEmpty());
  // One of a GPU is not: this is a CPU.
  named.device = "cuda (Fake 9000)";
  must(planner::store_machine(path, named));
  must(ask_alone());
  EXPECT_THAT(runs(), SizeIs(1));
  EXPECT_EQ((*must(planner::load_machine(path))).device, "cuda (Fake 9000)");
}

TEST_F(FirstProbeTest, ElixirProbeZeroForbidsToMeasureAndNotToLoad) {
  ::setenv("ELIXIR_PROBE", "0", 1);
  for (const auto& refused : {ask().status(), ask_alone().status()}) {
    expect_refused(refused, Code::kUnavailable, {"ELIXIR_PROBE", "elixirctl probe"});
  }
  EXPECT_THAT(runs(), IsEmpty());
  ::unsetenv("ELIXIR_PROBE");
  must(ask_alone(2));
  ::setenv("ELIXIR_PROBE", "0", 1);
  must(ask_alone());
  must(ask("another job"));
}

// The limit is twice as long for those that wait, and 1000 s here.
TEST_F(FirstProbeTest, TheEnvironmentReplacesTheLimit) {
  program("exec sleep 1000");
  ::setenv("ELIXIR_PROBE_SECONDS", "0.1", 1);
  EXPECT_THAT(refusal_of(ask_alone().status(), Code::kUnavailable),
              HasSubstr("more than 0 s (ELIXIR_PROBE_SECONDS"));
  ::setenv("ELIXIR_PROBE_SECONDS", "soon", 1);
  program("exit 5");
  EXPECT_THAT(refusal_of(ask_alone().status(), Code::kUnavailable), HasSubstr("ended with 5"));
  ::unsetenv("ELIXIR_PROBE_SECONDS");
}

TEST_F(FirstProbeTest, AFailureIsSaidAndNotRepeatedByTheOtherRanks) {
  program("exit 5");
  const std::string first = refusal_of(ask().status(), Code::kUnavailable);
  EXPECT_THAT(first, AllOf(HasSubstr("ended with 5"), HasSubstr("elixirctl probe")));
  EXPECT_EQ(refusal_of(ask().status(), Code::kUnavailable), first);
  EXPECT_THAT(runs(), SizeIs(1));
  EXPECT_FALSE(ask("the next job").ok());
  EXPECT_THAT(runs(), SizeIs(2));
  program("echo '{\"gpus\": 1}'");
  EXPECT_FALSE(ask("a third").ok());
}

// Whatever becomes of the files between the first rank and the second.
TEST_F(FirstProbeTest, AllRanksOfANodeGetTheAnswerOfTheFirst) {
  const KnownMachine first = must(ask());
  ProbedMachine newer = rates("2040-01-01T00:00:00Z");
  newer.machine.dram_gb_s = 1;
  must(planner::store_machine(must(planner::machine_cache_path()), newer));
  EXPECT_EQ(must(ask()).probed.machine.dram_gb_s, first.probed.machine.dram_gb_s);
  ::setenv("ELIXIR_PROBE", "0", 1);
  must(ask());
  ::unsetenv("ELIXIR_PROBE");
  // The next start has the new ones.
  EXPECT_EQ(must(ask("another job")).probed.machine.dram_gb_s, 1);
  EXPECT_EQ(must(ask_alone()).probed.machine.dram_gb_s, 1);
  // Answers do not pile up.
  for (int i = 0; i < 40; ++i) must(ask("job " + std::to_string(i)));
  size_t answers = 0;
  for (const auto& entry : std::filesystem::directory_iterator(must(planner::cache_folder()))) {
    answers += entry.path().filename().string().starts_with("job-");
  }
  EXPECT_LE(answers, 16u);
}

TEST_F(FirstProbeTest, AFolderThatCannotBeWrittenIsSaid) {
  const std::string file = folder_.write("file", "");
  ::setenv("XDG_CACHE_HOME", file.c_str(), 1);
  expect_refused(ask().status(), Code::kUnavailable, {"cannot be opened", "XDG_CACHE_HOME"});
  EXPECT_THAT(runs(), IsEmpty());
}

TEST_F(FirstProbeTest, AProbeBeyondItsLimitIsEnded) {
  program("exec sleep 1000");
  expect_refused(ask("job", 2, 0).status(), Code::kUnavailable,
                 {"more than 0 s", "elixirctl probe"});
}

TEST_F(FirstProbeTest, CorrectionsCountUntilSomebodyMeasuresAgain) {
  const KnownMachine known = must(ask_alone());
  const double before = known.probed.machine.cpu_update_gparam_s;
  const std::vector<planner::LegOff> off = {{planner::Leg::kUpdate, 1.25}};
  must(correct_rates(known.probed, off, "gpt2-4b"));
  const ProbedMachine corrected = must(ask_alone()).probed;
  EXPECT_DOUBLE_EQ(corrected.machine.cpu_update_gparam_s, before / 1.25);
  EXPECT_THAT(corrected.notes, Contains(HasSubstr("gpt2-4b")));
  // Another training by the same plan corrects the same rates, and one by the next plan the new
  // ones.
  must(correct_rates(known.probed, off, "gpt2-4b"));
  EXPECT_DOUBLE_EQ(must(ask_alone()).probed.machine.cpu_update_gparam_s, before / 1.25);
  must(correct_rates(corrected, off, "gpt2-xl"));
  const ProbedMachine again = must(ask_alone()).probed;
  EXPECT_DOUBLE_EQ(again.machine.cpu_update_gparam_s, before / 1.25 / 1.25);
  EXPECT_EQ(again.notes.size(), corrected.notes.size());
  // elixirctl probe, later: a training that was planned before says nothing of it.
  ProbedMachine newer = rates("2031-06-01T00:00:00Z");
  newer.machine.cpu_update_gparam_s = 9;
  must(planner::store_machine(must(planner::machine_cache_path()), newer));
  expect_refused(correct_rates(again, off, "gpt2-4b"), Code::kUnavailable, {"measured again"});
  const ProbedMachine now = must(ask_alone()).probed;
  EXPECT_EQ(now.machine.cpu_update_gparam_s, 9);
  must(correct_rates(now, off, "gpt2-4b"));
  EXPECT_EQ(must(ask_alone()).probed.machine.cpu_update_gparam_s, 9 / 1.25);
  EXPECT_THAT(runs(), SizeIs(1));
}

// A file of fewer devices is not taken for the one that was planned with.
TEST_F(FirstProbeTest, CorrectionsAreOfTheRatesThatWerePlannedWith) {
  ProbedMachine four = rates("2031-01-01T00:00:00Z");
  four.machine.gpus = 4;
  answer(four);
  const KnownMachine known = must(ask_alone(4));
  ProbedMachine one = rates("2031-06-01T00:00:00Z");
  one.machine.gpus = 1;
  must(planner::store_machine(must(planner::machine_cache_path()), one));
  must(correct_rates(known.probed, {{planner::Leg::kUpdate, 2}}, "gpt2-4b"));
  const ProbedMachine corrected = must(ask_alone(4)).probed;
  EXPECT_EQ(corrected.machine.gpus, 4u);
  EXPECT_DOUBLE_EQ(corrected.machine.cpu_update_gparam_s, four.machine.cpu_update_gparam_s / 2);
}

TEST_F(FirstProbeTest, NothingIsCorrectedThatWasForgotten) {
  const ProbedMachine probed = must(ask_alone()).probed;
  must(planner::forget_machine(must(planner::machine_cache_path())));
  EXPECT_EQ(must(planner::forget_hardware()).size(), 1u);
  EXPECT_TRUE(must(planner::forget_hardware()).empty());
  expect_refused(correct_rates(probed, {{planner::Leg::kUpdate, 2}}, "gpt2-4b"), Code::kUnavailable,
                 {"forgotten"});
  EXPECT_FALSE(std::filesystem::exists(must(planner::hardware_cache_path(kHardware))));
}

TEST_F(FirstProbeTest, WithoutHardwareNothingIsMeasured) {
  expect_refused(load_or_measure({.hardware = "", .program = folder_.path("probe")}).status(),
                 Code::kUnavailable, {"CUDA shows no GPU"});
  EXPECT_THAT(runs(), IsEmpty());
}

}  // namespace
}  // namespace elixir::probe
