// elixirctl probe with a fake elixir-probe beside it; doctor's finding on what was kept.

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "ctl/doctor.h"
#include "tests/ctl/run_program.h"
#include "tests/planner/machines.h"
#include "tests/support/matchers.h"

namespace elixir::ctl {
namespace {

namespace fs = std::filesystem;
using planner::testing::some_probe;

// ---- doctor ----

class MachineFindingTest : public ::testing::Test {
 protected:
  MachineFindingTest() {
    options_.root = folder_.path("root");
    options_.machine_file = folder_.path("machine.json");
  }
  TemporaryFolder folder_;
  DoctorOptions options_;
};

TEST_F(MachineFindingTest, WithoutAProbeIsANote) {
  const Finding finding = examine_machine(options_);
  EXPECT_EQ(finding.name, "machine");
  EXPECT_EQ(finding.severity, Severity::kNote);
  EXPECT_THAT(finding.text, HasSubstr("not probed"));
  EXPECT_EQ(finding.remedy, "elixirctl probe");
}

TEST_F(MachineFindingTest, ShowsWhatWasKeptWithItsDate) {
  ASSERT_TRUE(planner::store_machine(options_.machine_file, some_probe()).ok());
  const Finding finding = examine_machine(options_);
  EXPECT_EQ(finding.severity, Severity::kOk);
  EXPECT_EQ(finding.text,
            "probed 2031-02-03T04:05:06Z: 2 x cuda (Fake 9000); link 31.2 GB/s to them, 28.5 back, "
            "40.0 both ways at once; memory 130.0 GB/s in place; update 2.50 Gparam/s by elixird, "
            "70.00 on the devices; matrices 185.00 TFLOPS each");
  EXPECT_EQ(finding.remedy, "");
}

TEST_F(MachineFindingTest, ABrokenFileIsANoteWithTheReason) {
  folder_.write("machine.json", "{\"gpus\": 1");
  const Finding finding = examine_machine(options_);
  EXPECT_EQ(finding.severity, Severity::kNote);
  EXPECT_THAT(finding.remedy, AllOf(HasSubstr(options_.machine_file),
                                    HasSubstr("not a JSON object"), HasSubstr("elixirctl probe")));
}

TEST_F(MachineFindingTest, AProbeWithoutTheGpuThatShowsIsANote) {
  planner::ProbedMachine probed = some_probe();
  probed.device = "cpu";
  ASSERT_TRUE(planner::store_machine(options_.machine_file, probed).ok());
  EXPECT_EQ(examine_machine(options_).severity, Severity::kOk);
  folder_.write("root/dev/nvidia0", "");
  EXPECT_EQ(examine_machine(options_).severity, Severity::kNote);
  EXPECT_EQ(examine_machine(options_).remedy, "elixirctl probe");
}

// ---- the program ----

class ProbeProgramTest : public ::testing::Test {
 protected:
  ProbeProgramTest() {
    fs::create_directory(folder_.path("bin"));
    fs::copy_file(ELIXIRCTL, folder_.path("bin/elixirctl"));
  }
  // A shell script in elixir-probe's place; its arguments are then in the file "arguments".
  void write_probe(const std::string& body) {
    const std::string path =
        folder_.write("bin/elixir-probe", "#!/bin/sh\nprintf '%s ' \"$@\" > " +
                                              folder_.path("arguments") + "\n" + body + "\n");
    fs::permissions(path, fs::perms::owner_all);
  }
  void write_good_probe() {
    folder_.write("answer", planner::to_json(some_probe()));
    write_probe("echo measuring >&2; cat " + folder_.path("answer"));
  }
  int probe(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {folder_.path("bin/elixirctl"), "probe"});
    const Ended ended = run_program(arguments, {"ELIXIR_MACHINE_FILE=" + cache_});
    output_ = ended.out;
    errors_ = ended.err;
    return ended.code;
  }
  std::string read(const char* name) {
    std::ifstream file(folder_.path(name));
    return {std::istreambuf_iterator<char>(file), {}};
  }
  TemporaryFolder folder_;
  const std::string cache_ = folder_.path("cache/machine.json");
  std::string output_, errors_;
};

TEST_F(ProbeProgramTest, PrintsATableAndKeepsTheFile) {
  write_good_probe();
  ASSERT_EQ(probe({}), 0) << errors_;
  EXPECT_EQ(read("arguments"), " ");
  EXPECT_EQ(errors_, "measuring\n");
  EXPECT_THAT(
      output_,
      AllOf(HasSubstr("node-1, 2031-02-03T04:05:06Z: 2 x cuda (Fake 9000)\n"),
            HasSubstr("host to device            31.25 GB/s\n"),
            HasSubstr("3.000 Gparam/s, 1 trainer\n"), HasSubstr("2.500 Gparam/s, 2 trainers\n"),
            HasSubstr("collectives were not measured\n"), HasSubstr("kept in " + cache_ + "\n")));
  const Result<std::optional<planner::ProbedMachine>> kept = planner::load_machine(cache_);
  ASSERT_TRUE(kept.ok() && kept->has_value());
  EXPECT_EQ(planner::to_json(**kept), planner::to_json(some_probe()));
}

TEST_F(ProbeProgramTest, PrintsTheMachineFile) {
  write_good_probe();
  ASSERT_EQ(probe({"--json", "--output", folder_.path("copy.json"), "--gpus", "2", "--device",
                   "cuda", "--g2g-gb-s", "20", "--quick"}),
            0)
      << errors_;
  EXPECT_EQ(read("arguments"), "--device=cuda --gpus=2 --g2g-gb-s=20 --quick ");
  EXPECT_EQ(output_, planner::to_json(some_probe()));
  EXPECT_EQ(read("copy.json"), output_);
  EXPECT_TRUE(fs::exists(cache_));
}

TEST_F(ProbeProgramTest, APlayedLinkIsNotKept) {
  write_good_probe();
  ASSERT_EQ(probe({"--link-gb-s", "4,2,5", "--output", folder_.path("copy.json")}), 0) << errors_;
  EXPECT_EQ(read("arguments"), "--link-gb-s=4,2,5 ");
  EXPECT_THAT(output_, HasSubstr("not kept"));
  EXPECT_FALSE(fs::exists(cache_));
  EXPECT_TRUE(fs::exists(folder_.path("copy.json")));
}

TEST_F(ProbeProgramTest, ForgetsWhatWasMeasuredAndNotWhatSomebodyWrote) {
  const std::string rates = folder_.write("xdg/elixir/rates-some-card.json", "{}");
  folder_.write("xdg/elixir/plan-1", "");
  const auto forget = [&] {
    const Ended ended =
        run_program({folder_.path("bin/elixirctl"), "probe", "--forget"},
                    {"ELIXIR_MACHINE_FILE=" + cache_, "XDG_CACHE_HOME=" + folder_.path("xdg")});
    EXPECT_EQ(ended.code, 0) << ended.err;
    return ended.out;
  };
  planner::ProbedMachine written = some_probe();
  written.machine.probed.clear();
  must(planner::store_machine(cache_, written));
  EXPECT_EQ(forget(), cache_ + " stays: it was not measured here\nremoved " + rates + "\n");
  EXPECT_TRUE(fs::exists(cache_));
  EXPECT_TRUE(fs::exists(folder_.path("xdg/elixir/plan-1")));
  must(planner::store_machine(cache_, some_probe()));
  EXPECT_EQ(forget(), "removed " + cache_ + "\n");
  EXPECT_EQ(forget(), cache_ + " is not there\n");
}

TEST_F(ProbeProgramTest, WithoutTheProgramSaysWhereItBelongs) {
  EXPECT_EQ(probe({}), static_cast<int>(Code::kUnavailable));
  EXPECT_THAT(errors_, HasSubstr(folder_.path("bin/elixir-probe")));
#if ELIXIR_WITH_TORCH
  EXPECT_THAT(errors_, HasSubstr("install elixirctl and elixir-probe into one folder"));
  folder_.write("CMakeCache.txt", "");  // as after a build of elixirctl alone
  EXPECT_EQ(probe({}), static_cast<int>(Code::kUnavailable));
  EXPECT_THAT(errors_, HasSubstr("cmake --build " + folder_.path() + " --target elixir-probe"));
#else
  EXPECT_THAT(errors_, HasSubstr("ELIXIR_WITH_TORCH=ON"));
#endif
}

TEST_F(ProbeProgramTest, FailuresOfTheProgramAreItsOwn) {
  write_probe("echo 'elixir-probe: no GPU' >&2; exit 5");
  EXPECT_EQ(probe({}), 5);
  EXPECT_EQ(errors_, "elixir-probe: no GPU\n");
  write_probe("kill -9 $$");
  EXPECT_EQ(probe({}), static_cast<int>(Code::kResourceExhausted)) << "memory, most likely";
  EXPECT_THAT(errors_, HasSubstr("was ended by SIGKILL"));
  write_probe("echo nonsense");
  EXPECT_EQ(probe({}), static_cast<int>(Code::kVersionMismatch));
  EXPECT_FALSE(fs::exists(cache_));
}

TEST_F(ProbeProgramTest, AFileThatCannotBeWrittenIsAnErrorAfterTheTable) {
  write_good_probe();
  folder_.write("cache", "in the way");
  EXPECT_EQ(probe({}), static_cast<int>(Code::kUnavailable));
  EXPECT_THAT(output_, HasSubstr("node-1"));
  EXPECT_THAT(errors_, HasSubstr("ELIXIR_MACHINE_FILE"));
}

}  // namespace
}  // namespace elixir::ctl
