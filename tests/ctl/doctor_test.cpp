// elixirctl doctor: the documented lines, severities and exit codes, with fake trees, a fake probe
// and a fake elixird.

#include "ctl/doctor.h"

#include <stdlib.h>

#include <nlohmann/json.hpp>

#include "base/version.h"
#include "shm/layout.h"
#include "shm/runtime_folder.h"
#include "tests/ctl/fake_daemon.h"
#include "tests/ctl/run_program.h"
#include "tests/support/matchers.h"

namespace elixir::ctl {
namespace {

using Json = nlohmann::json;

constexpr char kGoodProbe[] = R"({"driver": "13.1", "runtime": "13.0", "nccl": "2.28.9",
  "torch": "2.11.0", "error": "", "gpus": [{"index": 0, "name": "Fake 9000",
  "memory_bytes": 17179869184, "free_bytes": 8589934592, "pci_address": "0000:c1:00.0",
  "numa_node": 1, "uuid": "GPU-1", "compute_capability": "9.0", "read_only_pinning": true,
  "pinning_error": "", "error": "", "h2d_gb_s": 25.04, "d2h_gb_s": 26.0, "both_gb_s": 40.5}]})";

class DoctorTest : public ::testing::Test {
 protected:
  DoctorTest() {
    options_.root = root_.path();
    options_.runtime_dir = runtime_.path();
    options_.cuda_library = {.file_name = "libelixir_nowhere.so",
                             .variable = "",
                             .build_path = FAKE_PROBE_LIBRARY,
                             .remedy = "build it"};
    write_meminfo(64ull << 20);
    ::unsetenv("CUDA_VISIBLE_DEVICES");
  }
  ~DoctorTest() override { ::unsetenv("ELIXIR_TEST_PROBE_ANSWER"); }
  void write_meminfo(uint64_t kib) const {
    root_.write("proc/meminfo",
                "MemTotal: 99999999 kB\nMemAvailable: " + std::to_string(kib) + " kB\n");
  }
  void set_probe(const std::string& answer) const {
    root_.write("dev/nvidia0", "");
    ::setenv("ELIXIR_TEST_PROBE_ANSWER", answer.c_str(), 1);
  }
  std::vector<Finding> gpus() { return examine_gpus(options_, &report_); }
  Finding host(const std::string& name) const {
    for (const Finding& finding : examine_host(options_)) {
      if (finding.name == name) return finding;
    }
    ADD_FAILURE() << "no finding " << name;
    return {};
  }

  TemporaryFolder root_, runtime_;
  DoctorOptions options_;
  Json report_;
};

// ---- the host ----

TEST_F(DoctorTest, CountsMemoryInParameters) {
  const Finding memory = host("memory");
  EXPECT_EQ(memory.severity, Severity::kOk);
  EXPECT_THAT(memory.text, AllOf(HasSubstr("64.00 GiB available (MemAvailable of this machine)"),
                                 HasSubstr("4.91 G parameters in BF16")));
}

TEST_F(DoctorTest, TooLittleMemoryIsAProblem) {
  write_meminfo(512 << 10);
  const Finding memory = host("memory");
  EXPECT_EQ(memory.severity, Severity::kProblem);
  EXPECT_THAT(memory.text, HasSubstr("512.00 MiB available"));
  EXPECT_THAT(memory.text, HasSubstr("the least is 1.00 GiB"));
  EXPECT_FALSE(memory.remedy.empty());
}

TEST_F(DoctorTest, TellsAQuotaOfProcessorTime) {
  EXPECT_EQ(host("processors").text.find("quota"), std::string::npos);
  root_.write("proc/self/cgroup", "0::/job\n");
  root_.write("sys/fs/cgroup/job/cpu.max", "50000 100000\n");
  const Finding processors = host("processors");
  EXPECT_EQ(processors.severity, Severity::kNote);
  EXPECT_THAT(processors.text,
              HasSubstr("a quota allows 0.50 processors' time (cpu.max of cgroup /job): 1 thread"));
  EXPECT_THAT(processors.remedy, HasSubstr("raise the quota"));
}

TEST_F(DoctorTest, ListsNumaNodes) {
  EXPECT_THAT(host("numa nodes").text, HasSubstr("assumed to be one"));
  root_.write("sys/devices/system/node/online", "0-1\n");
  for (const char* node : {"0", "1"}) {
    const std::string folder = std::string("sys/devices/system/node/node") + node;
    root_.write(folder + "/cpulist", node == std::string("0") ? "0-7\n" : "8-15\n");
    root_.write(folder + "/meminfo", std::string("Node ") + node + " MemTotal: 4194304 kB\n");
  }
  EXPECT_EQ(host("numa nodes").text, "0: processors 0-7, 4.00 GiB; 1: processors 8-15, 4.00 GiB");
}

TEST_F(DoctorTest, SharedMemoryIsTried) {
  for (const Finding& finding : examine_host(options_)) {
    if (finding.name != "huge pages") continue;
    EXPECT_THAT(finding.text, HasSubstr("pages of "));
    // A page smaller than 2 MiB comes with the command that gets larger ones.
    EXPECT_EQ(finding.text.find("2.00 MiB") == std::string::npos, !finding.remedy.empty());
    return;
  }
  FAIL() << "no finding on huge pages";
}

TEST_F(DoctorTest, NoElixirdIsFine) {
  const Finding elixird = host("elixird");
  EXPECT_NE(elixird.severity, Severity::kProblem);
  EXPECT_THAT(elixird.text, HasSubstr("none runs in " + runtime_.path()));
}

TEST_F(DoctorTest, ARunningElixirdIsAsked) {
  const shm::RuntimeFolder folder{runtime_.path()};
  const FakeDaemon daemon(folder.status_endpoint(),
                          {fmt::format(R"({{"daemon": {{"pid": 42, "version": "{}",
                                            "layout_version": {}, "page_bytes": 4096}},
                                            "jobs": [{{}}, {{}}]}})",
                                       kVersion, shm::kLayoutVersion)});
  const Finding elixird = host("elixird");
  EXPECT_EQ(elixird.severity, Severity::kOk);
  EXPECT_THAT(elixird.text, HasSubstr(", 2 jobs, pages of 4.00 KiB"));
}

TEST_F(DoctorTest, AnElixirdOfAnotherVersionIsAProblem) {
  const shm::RuntimeFolder folder{runtime_.path()};
  for (const char* const answer : {R"({"daemon": 3})", "no json"}) {
    const FakeDaemon daemon(folder.status_endpoint(), {answer});
    EXPECT_EQ(host("elixird").severity, Severity::kProblem) << answer;
  }
}

TEST_F(DoctorTest, AnElixirdThatDoesNotAnswerIsAProblemAndNotNone) {
  const shm::RuntimeFolder folder{runtime_.path()};
  const FakeDaemon daemon(folder.status_endpoint(), {});
  const Finding elixird = host("elixird");
  EXPECT_EQ(elixird.severity, Severity::kProblem);
  EXPECT_THAT(elixird.text, HasSubstr(fmt::format("(pid {}) has not answered", ::getpid())));
  EXPECT_THAT(elixird.remedy, HasSubstr("log"));
}

TEST_F(DoctorTest, AForeignRuntimeFolderIsAProblem) {
  options_.runtime_dir = "/etc/passwd";
  const Finding elixird = host("elixird");
  EXPECT_EQ(elixird.severity, Severity::kProblem);
  EXPECT_THAT(elixird.remedy, HasSubstr("ELIXIR_RUNTIME_DIR"));
}

// ---- GPUs ----

TEST_F(DoctorTest, WithoutAGpuNothingIsLoaded) {
  options_.cuda_library.build_path = "/nowhere/libelixir_cuda.so";
  const std::vector<Finding> findings = gpus();
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].severity, Severity::kOk);
  EXPECT_EQ(findings[0].text, "none shows; training runs on CPUs (--gpu looks harder)");
  EXPECT_TRUE(report_.is_null());
}

TEST_F(DoctorTest, AGpuHasItsLine) {
  set_probe(kGoodProbe);
  const std::vector<Finding> findings = gpus();
  ASSERT_EQ(findings.size(), 3u);
  EXPECT_THAT(findings[0].text, HasSubstr("CUDA 13.0, NCCL 2.28.9, LibTorch 2.11.0"));
  EXPECT_EQ(findings[1].text, "for CUDA up to 13.1");
  EXPECT_EQ(findings[2].text,
            "0: Fake 9000, 16.00 GiB (8.00 GiB free), compute capability 9.0, 0000:c1:00.0, NUMA "
            "node 1; link 25.0 GB/s to it, 26.0 from it, 40.5 both ways at once; host memory can "
            "be page-locked, read-only mappings too");
  for (const Finding& finding : findings) EXPECT_EQ(finding.severity, Severity::kOk);
  EXPECT_EQ(report_["gpus"][0]["name"], "Fake 9000");

  Json probe = Json::parse(kGoodProbe);
  probe["gpus"][0]["read_only_pinning"] = false;
  set_probe(probe.dump());
  EXPECT_EQ(gpus()[2].severity, Severity::kOk);
  EXPECT_THAT(gpus()[2].text, HasSubstr("except read-only mappings (not needed)"));
}

TEST_F(DoctorTest, RefusedPinningIsLoudAndHasTheReason) {
  Json probe = Json::parse(kGoodProbe);
  probe["gpus"][0]["pinning_error"] = "CUDA failed to page-lock";
  probe["gpus"][0]["numa_node"] = -1;
  set_probe(probe.dump());
  const Finding gpu = gpus()[2];
  EXPECT_EQ(gpu.severity, Severity::kNote);
  EXPECT_THAT(gpu.text, AllOf(HasSubstr("CANNOT BE PAGE-LOCKED"), HasSubstr("NUMA node unknown")));
  EXPECT_THAT(gpu.remedy, AllOf(HasSubstr("CUDA failed to page-lock"), HasSubstr("ulimit -l")));
  options_.gpu = true;
  EXPECT_EQ(gpus()[2].severity, Severity::kProblem);
}

TEST_F(DoctorTest, AGpuThatFailsIsAProblemOnlyWhenOneIsWanted) {
  Json probe = Json::parse(kGoodProbe);
  probe["gpus"][0]["error"] = "CUDA failed to use the GPU: busy; end the other process";
  set_probe(probe.dump());
  EXPECT_EQ(gpus()[2].severity, Severity::kNote);
  options_.gpu = true;
  EXPECT_EQ(gpus()[2].severity, Severity::kProblem);
  EXPECT_THAT(gpus()[2].remedy, HasSubstr("end the other process"));
}

TEST_F(DoctorTest, NoDriverCarriesTheLibrarysReason) {
  set_probe(R"({"driver": "", "error": "no driver; install one", "gpus": []})");
  options_.gpu = true;
  const std::vector<Finding> findings = gpus();
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_EQ(findings[1].severity, Severity::kProblem);
  EXPECT_EQ(findings[1].remedy, "no driver; install one");
}

TEST_F(DoctorTest, ALibraryThatIsMissingOrBrokenIsSaid) {
  root_.write("dev/nvidia0", "");
  options_.cuda_library.build_path = "/nowhere/libelixir_cuda.so";
  EXPECT_EQ(gpus()[0].severity, Severity::kNote);
  EXPECT_THAT(gpus()[0].remedy, AllOf(HasSubstr("was not found"), HasSubstr("build it")));

  options_.cuda_library.build_path = "libc.so.6";  // no probe in it
  options_.gpu = true;
  EXPECT_EQ(gpus()[0].severity, Severity::kProblem);
  EXPECT_THAT(gpus()[0].remedy, HasSubstr("elixir_gpu_probe"));
}

TEST_F(DoctorTest, NonsenseFromTheProbeIsSaid) {
  for (const std::string& nonsense :
       {std::string("nonsense"), std::string("[]"), std::string("{\"gpus\": [3]}"),
        std::string("{\"driver\": 5}"), std::string(1 << 20, 'x')}) {
    set_probe(nonsense);
    const std::vector<Finding> findings = gpus();
    ASSERT_FALSE(findings.empty());
    EXPECT_EQ(findings[0].severity, Severity::kNote) << nonsense.substr(0, 20);
  }
}

// ---- what is printed ----

TEST(DoctorTextTest, LinesAndJsonSayTheSame) {
  const std::vector<Finding> findings = {{"memory", Severity::kOk, "much", ""},
                                         {"huge pages", Severity::kNote, "small", "echo advise"},
                                         {"libtorch", Severity::kProblem, "none", "build.sh"}};
  EXPECT_EQ(doctor_text(findings),
            "ok       memory         much\n"
            "note     huge pages     small\n"
            "                        -> echo advise\n"
            "problem  libtorch       none\n"
            "                        -> build.sh\n"
            "\n1 problem\n");
  const Json json = Json::parse(doctor_json(findings, {{"gpus", 1}}));
  EXPECT_EQ(json["ok"], false);
  EXPECT_EQ(json["findings"][1]["severity"], "note");
  EXPECT_EQ(json["findings"][2]["remedy"], "build.sh");
  EXPECT_EQ(json["gpu"]["gpus"], 1);
  EXPECT_THAT(doctor_text({findings[1]}), HasSubstr("\nnothing is missing\n"));
  EXPECT_EQ(Json::parse(doctor_json({findings[1]}, nullptr))["ok"], true);
}

// ---- the program, on this machine ----

class DoctorProgramTest : public ::testing::Test {
 protected:
  // The exit code; what it printed is in output_.
  int doctor(std::vector<std::string> arguments, std::vector<std::string> environment = {}) {
    arguments.insert(arguments.begin(), {ELIXIRCTL, "doctor"});
    environment.push_back("ELIXIR_RUNTIME_DIR=" + folder_.path("run"));
    const Ended ended = run_program(std::move(arguments), std::move(environment));
    output_ = ended.out + ended.err;
    return ended.code;
  }
  TemporaryFolder folder_;
  std::string output_;
};

TEST_F(DoctorProgramTest, FindsNothingMissingForTrainingOnCpus) {
  EXPECT_EQ(doctor({}), 0) << output_;
  for (const char* name : {"processors", "numa nodes", "memory", "huge pages", "memlock",
                           "/dev/shm", "libtorch", "elixird"}) {
    EXPECT_THAT(output_, HasSubstr(std::string(" ") + name + " ")) << name;
  }
  EXPECT_THAT(output_, HasSubstr("\nnothing is missing\n"));
  EXPECT_THAT(output_, Not(HasSubstr("problem ")));

  EXPECT_EQ(doctor({"--json"}), 0);
  const Json json = Json::parse(output_, nullptr, false);
  ASSERT_TRUE(json.is_object()) << output_;
  EXPECT_EQ(json["ok"], true);
  EXPECT_GE(json["findings"].size(), 9u);
}

TEST_F(DoctorProgramTest, LooksAtTheLibTorchThatTheLoaderTakes) {
  folder_.write("torch/version.py", "__version__ = '1.2.3+cu130'\n");
  folder_.write("torch/lib/libtorch_cpu.so", "");
  doctor({}, {"LD_LIBRARY_PATH=/nowhere:" + folder_.path("torch/lib")});
  if (output_.find("this build has no trainers") != std::string::npos) GTEST_SKIP();
  EXPECT_THAT(output_, HasSubstr("is needed, and " + folder_.path("torch") + " has 1.2.3"));
}

TEST_F(DoctorProgramTest, MeasuresThroughTheLibraryNamed) {
  const std::vector<std::string> environment = {
      std::string("ELIXIR_CUDA_LIBRARY=") + FAKE_PROBE_LIBRARY,
      std::string("ELIXIR_TEST_PROBE_ANSWER=") + kGoodProbe};
  EXPECT_EQ(doctor({"--gpu"}, environment), 0) << output_;
  EXPECT_THAT(output_, HasSubstr("0: Fake 9000, 16.00 GiB"));
}

TEST_F(DoctorProgramTest, AWantedGpuThatCannotBeUsedEndsWith5) {
  EXPECT_EQ(doctor({"--gpu"}, {"ELIXIR_CUDA_LIBRARY=/nowhere.so"}),
            static_cast<int>(Code::kUnavailable));
  EXPECT_THAT(output_, AllOf(HasSubstr("problem  cuda library"), HasSubstr("/nowhere.so"),
                             HasSubstr("\n1 problem\n")));
}

}  // namespace
}  // namespace elixir::ctl
