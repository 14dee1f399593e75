// The machine file: what is read back, what is refused and how it is said.

#include "planner/machine.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "planner/json_fields.h"
#include "planner/machine_json.h"
#include "tests/planner/machines.h"
#include "tests/support/matchers.h"

namespace elixir::planner {
namespace {

using Json = nlohmann::json;

Machine some_machine() {
  Machine machine{{.gpus = 4,
                   .d2h_gb_s = 0.1,
                   .h2d_gb_s = 46.25,
                   .joint_gb_s = 60,
                   .g2g_gb_s = 200,
                   .gpu_update_gparam_s = 75.5,
                   .cpu_update_gparam_s = 1.0 / 3}};
  machine.gpu_memory_bytes = 42949672961;
  machine.host_memory_bytes = 536870912003;
  machine.dram_gb_s = 130;
  machine.gpu_tflops = 185;
  machine.paper_parameter_ps = 88.5;
  machine.copies_hidden = 0.25;
  machine.name = "node-1 \"a\"";
  machine.probed = "2031-02-03";
  return machine;
}

Json some_json() { return Json::parse(to_json(some_machine())); }

Json with(const char* field, const Json& value) {
  Json file = some_json();
  file[field] = value;
  return file;
}
Json without(const char* field) {
  Json file = some_json();
  file.erase(field);
  return file;
}

// "" where there is none.
std::string refusal(const Status& status) {
  return status.ok() ? "" : refusal_of(status, Code::kBadInput);
}
std::string refusal(const Json& file, const MachineOverrides& overrides = {}) {
  return refusal(machine_from_json(file.dump(), overrides).status());
}
std::string refusal(const Machine& machine) { return refusal(check_machine(machine)); }

const char* const kRequired[] = {"gpus",
                                 "gpu_memory_bytes",
                                 "host_memory_bytes",
                                 "d2h_gb_s",
                                 "h2d_gb_s",
                                 "joint_gb_s",
                                 "g2g_gb_s",
                                 "gpu_update_gparam_s",
                                 "cpu_update_gparam_s",
                                 "dram_gb_s",
                                 "gpu_tflops"};
const char* const kOptional[] = {"paper_parameter_ps",
                                 "gpu_peak_tflops",
                                 "gpu_memory_gb_s",
                                 "gpu_launch_us",
                                 "copies_hidden",
                                 "gpu_attention_tflops",
                                 "name",
                                 "probed"};

double Machine::*const kRates[] = {&Machine::d2h_gb_s,
                                   &Machine::h2d_gb_s,
                                   &Machine::g2g_gb_s,
                                   &Machine::gpu_update_gparam_s,
                                   &Machine::cpu_update_gparam_s,
                                   &Machine::dram_gb_s,
                                   &Machine::gpu_tflops};
constexpr const char* kRateNames[] = {
    "d2h_gb_s",  "h2d_gb_s",  "g2g_gb_s", "gpu_update_gparam_s", "cpu_update_gparam_s",
    "dram_gb_s", "gpu_tflops"};

TEST(MachineJson, ReadsBackWhatItWrote) {
  const Machine machine = some_machine();
  const Machine read = must(machine_from_json(to_json(machine)));
  EXPECT_EQ(read.gpus, machine.gpus);
  EXPECT_EQ(read.gpu_memory_bytes, machine.gpu_memory_bytes);
  EXPECT_EQ(read.host_memory_bytes, machine.host_memory_bytes);
  for (size_t i = 0; i < std::size(kRates); ++i) {
    EXPECT_EQ(read.*kRates[i], machine.*kRates[i]) << kRateNames[i];
  }
  EXPECT_EQ(read.joint_gb_s, machine.joint_gb_s);
  EXPECT_EQ(read.paper_parameter_ps, machine.paper_parameter_ps);
  EXPECT_EQ(read.copies_hidden, machine.copies_hidden);
  EXPECT_EQ(read.name, machine.name);
  EXPECT_EQ(read.probed, machine.probed);
  EXPECT_EQ(to_json(read), to_json(machine));
}

TEST(MachineJson, RequiredFieldsThatAreMissingOrNullAreNamedAndOthersMayBe) {
  for (const char* const field : kOptional) {
    EXPECT_EQ(refusal(without(field)), "") << field;
    EXPECT_EQ(refusal(with(field, nullptr)), "") << field;
  }
  for (const char* const field : kRequired) {
    const std::string says = fmt::format("{} is missing", field);
    EXPECT_THAT(refusal(without(field)), HasSubstr(says));
    EXPECT_THAT(refusal(with(field, nullptr)), HasSubstr(says));
  }
  const Machine machine = *machine_from_json(without("copies_hidden").dump());
  EXPECT_EQ(machine.copies_hidden, std::nullopt);
  EXPECT_EQ(machine_from_json(without("paper_parameter_ps").dump())->paper_parameter_ps, 0);
}

TEST(MachineJson, RatesOfAGpusOperatorsAreReadBack) {
  Machine machine = some_machine();
  machine.gpu_peak_tflops = 312;
  machine.gpu_memory_gb_s = 1400;
  machine.gpu_launch_us = 4.5;
  machine.gpu_attention_tflops = {{64, 100, 80.5}, {128, 120, 90}};
  const Machine read = must(machine_from_json(to_json(machine)));
  EXPECT_EQ(read.gpu_peak_tflops, 312);
  EXPECT_EQ(read.gpu_memory_gb_s, 1400);
  EXPECT_EQ(read.gpu_launch_us, 4.5);
  ASSERT_EQ(read.gpu_attention_tflops.size(), 2u);
  EXPECT_EQ(read.gpu_attention_tflops[0].head, 64u);
  EXPECT_EQ(read.gpu_attention_tflops[0].backward_tflops, 80.5);
  EXPECT_EQ(to_json(read), to_json(machine));
}

TEST(MachineJson, BadRatesOfAGpusOperatorsAreNamed) {
  const std::tuple<const char*, Json, const char*> kCases[] = {
      {"gpu_peak_tflops", -1, "gpu_peak_tflops is -1"},
      {"gpu_memory_gb_s", -1, "gpu_memory_gb_s is -1"},
      {"gpu_launch_us", -1, "gpu_launch_us is -1"},
      {"gpu_attention_tflops", {{64, 100}}, "a list of [head width, forward, backward]"},
      {"gpu_attention_tflops", {{0.5, 100, 100}}, "a list of [head width, forward, backward]"},
      {"gpu_attention_tflops", "fast", "gpu_attention_tflops"},
      {"gpu_attention_tflops", {{64, 100, 0}}, "a rate of gpu_attention_tflops is 0"},
      {"gpu_attention_tflops", {{64, 9, 9}, {64, 9, 9}}, "head width 64 after 64"}};
  for (const auto& [field, value, says] : kCases) {
    EXPECT_THAT(refusal(with(field, value)), HasSubstr(says)) << value;
  }
}

TEST(MachineJson, NamesOfAnEarlierReleaseAreRead) {
  Json file = some_json();
  const std::string text = to_json(*machine_from_json(file.dump()));
  for (const auto& [name, old_name] :
       {std::pair("h2d_gb_s", "c2g_gb_s"), std::pair("d2h_gb_s", "g2c_gb_s")}) {
    file[old_name] = file[name];
    file.erase(name);
  }
  EXPECT_EQ(to_json(*machine_from_json(file.dump())), text);
}

TEST(MachineJson, AllMissingFieldsAreNamedAtOnce) {
  const std::string message = refusal(Json::object());
  // With no number of GPUs given, one is assumed, which needs no collectives.
  for (const char* const field : kRequired) {
    if (std::string_view(field) == "g2g_gb_s") continue;
    EXPECT_THAT(message, HasSubstr(field));
  }
  for (const char* const field : kOptional) EXPECT_THAT(message, Not(HasSubstr(field)));
}

TEST(MachineJson, NegativeFieldsAndThoseOfAnotherTypeAreNamedWithTheirValues) {
  for (const char* const field : kRequired) {
    EXPECT_THAT(refusal(with(field, -7)),
                HasSubstr(fmt::format("{} is -7, it cannot be negative", field)));
    for (const Json& value : {Json("fast"), Json(true), Json::array({1}), Json::object()}) {
      EXPECT_THAT(refusal(with(field, value)),
                  HasSubstr(fmt::format("{} is {}, a ", field, shown(value))));
    }
  }
  Json file = with("paper_parameter_ps", -0.5);
  file["copies_hidden"] = -0.5;
  file["probed"] = 2031;
  file["gpus"] = 1.5;
  EXPECT_THAT(refusal(file), AllOf(HasSubstr("probed is 2031, a string is needed"),
                                   HasSubstr("gpus is 1.5, a whole number is needed")));
  file["probed"] = "2031";
  file["gpus"] = 2;
  EXPECT_THAT(refusal(file),
              AllOf(HasSubstr("paper_parameter_ps is -0.5"), HasSubstr("copies_hidden is -0.5")));
}

TEST(MachineJson, WholeNumbersMayBeWrittenAsReals) {
  Json file = some_json();
  file["gpu_memory_bytes"] = 4e10;
  EXPECT_EQ(machine_from_json(file.dump())->gpu_memory_bytes, 40'000'000'000u);
  file["gpu_memory_bytes"] = 1e30;
  EXPECT_THAT(refusal(file), HasSubstr("gpu_memory_bytes is 1e+30, it is too large"));
  file["gpu_memory_bytes"] = std::numeric_limits<uint64_t>::max();
  EXPECT_EQ(refusal(file), "");
  EXPECT_EQ(machine_from_json(file.dump())->gpu_memory_bytes, std::numeric_limits<uint64_t>::max());
  file["gpus"] = uint64_t{1} << 32;
  EXPECT_THAT(refusal(file), HasSubstr("gpus is 4294967296, it is too large"));
}

TEST(MachineJson, CollectivesAreNotNeededWithOneGpu) {
  Json file = some_json();
  file["gpus"] = 1;
  file["g2g_gb_s"] = nullptr;
  EXPECT_EQ(refusal(file), "");
  file.erase("g2g_gb_s");
  EXPECT_EQ(refusal(file), "");
  // Half of one GPU's link, in a ring of two: 60 GB/s both ways, 60 / 2 * 2 / 1.
  EXPECT_DOUBLE_EQ(machine_from_json(file.dump(), {.gpus = 2})->g2g_gb_s, 60);
  EXPECT_DOUBLE_EQ(machine_from_json(file.dump(), {.gpus = 4})->g2g_gb_s, 30.0 * 4 / 3);
  EXPECT_TRUE(machine_from_json(file.dump(), {.gpus = 2})->assumed_g2g);
  EXPECT_FALSE(machine_from_json(file.dump(), {.gpus = 2, .g2g_gb_s = 9})->assumed_g2g);
  file["gpus"] = 2;
  EXPECT_THAT(refusal(file), HasSubstr("g2g_gb_s is missing"));
  EXPECT_EQ(refusal(file, {.gpus = 1}), "");
}

TEST(MachineJson, OverridesStandInTheFilesPlace) {
  Json file = some_json();
  file.erase("gpu_memory_bytes");
  file["host_memory_bytes"] = "much";
  const MachineOverrides overrides{
      .gpus = 2, .gpu_memory_bytes = 5 << 20, .host_memory_bytes = 6 << 20};
  const Machine machine = must(machine_from_json(file.dump(), overrides));
  EXPECT_EQ(machine.gpus, 2u);
  EXPECT_EQ(machine.gpu_memory_bytes, 5u << 20);
  EXPECT_EQ(machine.host_memory_bytes, 6u << 20);
  EXPECT_DOUBLE_EQ(machine.d2h_gb_s, 0.05);  // of four GPUs
  EXPECT_EQ(machine.scaled_from_gpus, 4u);
  EXPECT_EQ(machine_from_json(some_json().dump(), {.gpus = 0}).status().code(),
            Code::kInvalidArgument);
}

TEST(MachineJson, CollectivesOfTheCommandLineStandInThePlaceOfAll) {
  Json file = some_json();
  file["by_gpus"] = {{{"gpus", 2}, {"g2g_gb_s", 7}}};
  EXPECT_DOUBLE_EQ(machine_from_json(file.dump(), {.gpus = 2})->g2g_gb_s, 7);
  EXPECT_DOUBLE_EQ(machine_from_json(file.dump(), {.gpus = 2, .g2g_gb_s = 9})->g2g_gb_s, 9);
}

TEST(MachineJson, RatesOfTheFilesOwnNumberOfGpusAreTakenWithoutAFlag) {
  Json file = some_json();  // of four
  file["by_gpus"] = {{{"gpus", 4}, {"h2d_gb_s", 7}}};
  file["cpu_update_gparam_s_by_trainers"] = {1, 2, 3, 3.5};
  for (const MachineOverrides& overrides : {MachineOverrides{}, MachineOverrides{.gpus = 4}}) {
    const Machine machine = must(machine_from_json(file.dump(), overrides));
    EXPECT_DOUBLE_EQ(machine.h2d_gb_s, 7);
    EXPECT_DOUBLE_EQ(machine.cpu_update_gparam_s, 3.5);
    EXPECT_EQ(machine.scaled_from_gpus, 0u);
  }
}

TEST(MachineJson, AMisspeltFieldOrUnitIsNotTakenInSilence) {
  for (const char* field : {"bygpus", "g2g_gbs", "gpu_fp32_tflop", "paper_parameter_p"}) {
    Json file = some_json();
    for (const char* missing : {"paper_parameter_ps", "g2g_gb_s"}) file.erase(missing);
    file[field] = 1;
    EXPECT_THAT(refusal(file), HasSubstr("did you mean")) << field;
  }
  Json file = some_json();
  file["source"] = "a data sheet";
  EXPECT_EQ(refusal(file), "");
  EXPECT_THAT(refusal(file, {.gpu_memory_bytes = 40}), HasSubstr("--gpu-memory 40GiB"));
  file["host_memory_bytes"] = 500;
  EXPECT_THAT(refusal(file), HasSubstr("host_memory_bytes is 500 bytes"));
  file = some_json();
  file["by_gpus"] = {{{"gpus", 2}}, {{"gpus", 2}}};
  EXPECT_THAT(refusal(file), HasSubstr("by_gpus has 2 GPUs twice"));
}

// A probe's file without a version has g2g_gb_s of all links together: a ring of four passes each
// chunk three times.
TEST(MachineJson, AnOlderFileIsReadInItsOwnMeaning) {
  Json file = some_json();
  EXPECT_EQ(file["version"], kMachineFileVersion);
  EXPECT_EQ(machine_from_json(file.dump())->g2g_gb_s, 200);
  file.erase("overhead_bytes");
  EXPECT_EQ(machine_from_json(file.dump())->overhead_bytes, kDeviceOverheadBytes);
  file.erase("version");
  EXPECT_DOUBLE_EQ(machine_from_json(file.dump())->g2g_gb_s, 200.0 / 3);
  EXPECT_EQ(machine_from_json(file.dump())->overhead_bytes, 0u);  // a probe's: off the memory
  EXPECT_EQ(machine_from_json(file.dump())->gpu_fp32_tflops, 0);
  file.erase("probed");  // by hand
  EXPECT_EQ(machine_from_json(file.dump())->g2g_gb_s, 200);
  EXPECT_EQ(machine_from_json(file.dump())->overhead_bytes, 0u);
  file["device"] = "cpu";
  EXPECT_EQ(machine_from_json(file.dump())->gpu_fp32_tflops, 185);
  file["version"] = 4;
  EXPECT_THAT(refusal(file), HasSubstr("version 4"));
}

TEST(WithGpus, TakesRatesThatAreKnownAndScalesTheOthers) {
  Machine machine = some_machine();
  machine.by_gpus = {{.gpus = 1, .d2h_gb_s = 16, .h2d_gb_s = 22, .cpu_update_gparam_s = 5},
                     {.gpus = 2, .d2h_gb_s = 40, .g2g_gb_s = 201}};
  const Machine one = *with_gpus(machine, 1, 0);
  EXPECT_EQ(one.d2h_gb_s, 16);
  EXPECT_EQ(one.h2d_gb_s, 22);
  EXPECT_EQ(one.joint_gb_s, 15);  // a quarter of four GPUs'
  EXPECT_EQ(one.cpu_update_gparam_s, 5);
  EXPECT_EQ(one.scaled_from_gpus, 0u);
  const Machine three = *with_gpus(machine, 3, 0);  // by those of two
  EXPECT_DOUBLE_EQ(three.d2h_gb_s, 60);
  EXPECT_EQ(three.g2g_gb_s, 201);
  EXPECT_EQ(three.scaled_from_gpus, 2u);
  const Machine eight = *with_gpus(machine, 8, 0);
  EXPECT_DOUBLE_EQ(eight.h2d_gb_s, 2 * 46.25);
  EXPECT_EQ(eight.g2g_gb_s, 200);
  EXPECT_EQ(eight.cpu_update_gparam_s, machine.cpu_update_gparam_s);
  machine.by_gpus.push_back({.gpus = 4, .h2d_gb_s = 99});  // in the machine's own place
  EXPECT_EQ(with_gpus(machine, 4, 0)->h2d_gb_s, 99);
  machine.cpu_update_gparam_s_by_trainers = {1, 2, 3};
  EXPECT_EQ(with_gpus(machine, 2, 0)->cpu_update_gparam_s, 2);
}

TEST(WithGpus, SeveralNodes) {
  Machine machine = some_machine();
  EXPECT_EQ(with_gpus(machine, 16, 8).status().code(), Code::kInvalidArgument);
  machine.internode_gb_s = 12;
  const Machine two = *with_gpus(machine, 16, 8);
  EXPECT_EQ(two.nodes, 2u);
  EXPECT_EQ(two.gpus, 16u);
  EXPECT_DOUBLE_EQ(two.h2d_gb_s, 4 * 46.25);
  EXPECT_DOUBLE_EQ(two.cpu_update_gparam_s, 2 * machine.cpu_update_gparam_s);
  EXPECT_EQ(two.g2g_gb_s, 12);  // the slower of the two
  EXPECT_EQ(two.host_memory_bytes, machine.host_memory_bytes);
  EXPECT_EQ(with_gpus(machine, 12, 8).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(with_gpus(machine, kMostGpus + 1, 1).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(with_gpus(machine, 4, 8)->nodes, 1u);
}

TEST(MachineJson, RatesThatOtherNumbersOfGpusMakeUnusableAreRefused) {
  Machine machine = testing::a100_server(1);
  machine.d2h_gb_s = kMostRate / 4;
  EXPECT_TRUE(machine_from_json(to_json(machine), {.gpus = 4}).ok());
  expect_refused(machine_from_json(to_json(machine), {.gpus = 5}).status(), Code::kBadInput,
                 {"d2h_gb_s is"});
}

TEST(MachineJson, WhatIsNoObjectIsRefused) {
  for (const char* const text : {"", "{", "[]", "3", "null", "{\"gpus\": 1e999}", "\xff\xfe"}) {
    expect_refused(machine_from_json(text).status(), Code::kBadInput, {"not a JSON object"});
  }
}

TEST(CheckMachine, RatesAreFiniteAndMoreThanZero) {
  EXPECT_EQ(refusal(some_machine()), "");
  for (size_t i = 0; i < std::size(kRates); ++i) {
    for (const double bad : {0.0, -1.0, double{INFINITY}, double{-INFINITY}, double{NAN}}) {
      Machine machine = some_machine();
      machine.*kRates[i] = bad;
      EXPECT_THAT(refusal(machine), HasSubstr(fmt::format("{} is {}", kRateNames[i], bad)));
    }
  }
}

TEST(CheckMachine, SomeNumbersMayBeZero) {
  Machine machine = some_machine();
  machine.joint_gb_s = 0;
  machine.paper_parameter_ps = 0;
  machine.copies_hidden = 0;
  EXPECT_EQ(refusal(machine), "");
  machine.g2g_gb_s = 0;
  EXPECT_THAT(refusal(machine), HasSubstr("g2g_gb_s is 0"));
  machine.gpus = 1;
  EXPECT_EQ(refusal(machine), "");
  machine.joint_gb_s = -1;
  machine.paper_parameter_ps = NAN;
  EXPECT_THAT(refusal(machine),
              AllOf(HasSubstr("joint_gb_s is -1"), HasSubstr("paper_parameter_ps is nan")));
}

TEST(CheckMachine, EveryBadFieldIsNamed) {
  Machine bad;
  bad.gpus = 0;
  bad.copies_hidden = 1.5;
  const std::string message = refusal(bad);
  for (const char* const field :
       {"gpus is 0", "gpu_memory_bytes is 0", "host_memory_bytes is 0", "d2h_gb_s is 0",
        "h2d_gb_s is 0", "gpu_update_gparam_s is 0", "cpu_update_gparam_s is 0", "dram_gb_s is 0",
        "gpu_tflops is 0", "copies_hidden is 1.5"}) {
    EXPECT_THAT(message, HasSubstr(field));
  }
  Machine machine = some_machine();
  machine.copies_hidden = NAN;
  EXPECT_THAT(refusal(machine), HasSubstr("copies_hidden is nan"));
  machine.copies_hidden = 1;
  EXPECT_EQ(refusal(machine), "");
}

// 8 operations per parameter and token at half of the rate took 8 / rate seconds longer for each of
// 2048 tokens.
TEST(MachineJson, TokensAtHalfTheRateAreATimePerParameter) {
  Json file = without("paper_parameter_ps");
  file["gpu_half_tokens"] = 2048;
  EXPECT_EQ(machine_from_json(file.dump())->paper_parameter_ps, 0);  // not of this version
  file["version"] = 2;
  EXPECT_DOUBLE_EQ(machine_from_json(file.dump())->paper_parameter_ps, 8 * 2048 / 185.0);
}

// ---- flags in place of a file's rates ----

TEST(MachineOverrides, AGpuByItsNameBringsItsRatesAndTheHostStays) {
  Json file = some_json();
  file["by_gpus"] = {{{"gpus", 2}, {"h2d_gb_s", 1}, {"cpu_update_gparam_s", 3}}};
  const KnownGpu gpu = must(known_gpu("rtx4090"));
  const Machine machine = must(machine_from_json(file.dump(), {.gpus = 2, .gpu = gpu}));
  EXPECT_EQ(machine.gpu_memory_bytes, uint64_t{24} << 30);
  EXPECT_DOUBLE_EQ(machine.gpu_peak_tflops, 165.2);
  EXPECT_DOUBLE_EQ(machine.gpu_tflops, kProductShare * 165.2);
  EXPECT_DOUBLE_EQ(machine.h2d_gb_s, 2 * kLinkShare * 31.5);
  EXPECT_DOUBLE_EQ(device_gb_s(machine), kMemoryShare * 1008);
  EXPECT_DOUBLE_EQ(machine.gpu_update_gparam_s, 2 * kMemoryShare * 1008 / kUpdateBytes);
  EXPECT_EQ(machine.cpu_update_gparam_s, 3);
  EXPECT_EQ(machine.host_memory_bytes, some_machine().host_memory_bytes);
  // Other flags are stronger.
  const Machine larger = must(machine_from_json(
      file.dump(),
      {.gpus = 2, .gpu = gpu, .link_gb_s = 7, .gpu_memory_bytes = uint64_t{48} << 30}));
  EXPECT_EQ(larger.gpu_memory_bytes, uint64_t{48} << 30);
  EXPECT_DOUBLE_EQ(larger.h2d_gb_s, 14);
  EXPECT_DOUBLE_EQ(larger.joint_gb_s, 14 * kJointShare);
}

TEST(MachineOverrides, EveryKnownGpuMakesAMachine) {
  for (const KnownGpu& gpu : known_gpus()) {
    const Machine machine = must(machine_from_json(some_json().dump(), {.gpu = gpu}));
    EXPECT_TRUE(check_machine(machine).ok()) << gpu.name;
    EXPECT_GT(machine.gpu_peak_tflops, machine.gpu_tflops) << gpu.name;
    EXPECT_GT(machine.gpu_tflops, machine.gpu_fp32_tflops) << gpu.name;
    EXPECT_EQ(must(known_gpu(gpu.name)).memory_gib, gpu.memory_gib);
  }
  const Status unknown = known_gpu("rtx4091").status();
  EXPECT_EQ(unknown.code(), Code::kInvalidArgument);
  EXPECT_THAT(unknown.message(), AllOf(HasSubstr("did you mean rtx4090"), HasSubstr("h200")));
}

TEST(MachineOverrides, ALinkIsEachGpusAndAnUpdateAnyNumberOfTrainers) {
  Json file = some_json();
  file["cpu_update_gparam_s_by_trainers"] = {1, 2, 3, 4};
  file["cpu_update_beside_copies_gparam_s"] = 0.5;
  const Machine machine =
      must(machine_from_json(file.dump(), {.gpus = 2, .link_gb_s = 10, .cpu_gparam_s = 8}));
  EXPECT_DOUBLE_EQ(machine.h2d_gb_s, 20);
  EXPECT_DOUBLE_EQ(machine.d2h_gb_s, 20);
  EXPECT_NEAR(machine.joint_gb_s, 40 * 60 / 46.35, 1e-9);  // the file's 60 of 0.1 and 46.25
  EXPECT_DOUBLE_EQ(machine.cpu_update_gparam_s, 8);
  EXPECT_DOUBLE_EQ(machine.dram_gb_s, kUpdateBytes * 8);
  EXPECT_EQ(machine.cpu_update_beside_copies_gparam_s, 0);
}

TEST(MachineOverrides, NumaNodesAddUp) {
  Json file = some_json();
  file["numa_nodes"] = 2;
  const Machine machine = must(machine_from_json(file.dump(), {.host_numa_nodes = 8}));
  EXPECT_DOUBLE_EQ(machine.dram_gb_s, 4 * 130);
  EXPECT_DOUBLE_EQ(machine.cpu_update_gparam_s, 4.0 / 3);
  EXPECT_EQ(machine.h2d_gb_s, 46.25);
  EXPECT_EQ(must(machine_from_json(to_json(machine))).numa_nodes, 8u);
  file["numa_nodes"] = 0;
  EXPECT_THAT(refusal(file), HasSubstr("numa_nodes is 0"));
}

TEST(SlowestOf, TakesTheLeastOfEachRateAndSize) {
  Machine a = some_machine(), b = some_machine();
  a.by_gpus = {{.gpus = 1, .h2d_gb_s = 1}};
  a.h2d_gb_s = 10, b.h2d_gb_s = 20;
  a.d2h_gb_s = 30, b.d2h_gb_s = 20;
  a.joint_gb_s = 0, b.joint_gb_s = 25;  // 0: no limit
  a.internode_gb_s = 12, b.internode_gb_s = 0;
  a.gpu_launch_us = 4, b.gpu_launch_us = 6;
  a.gpu_memory_bytes /= 2;
  b.host_memory_bytes /= 2;
  a.gpu_attention_tflops = {{64, 100, 90}, {128, 200, 150}};
  b.gpu_attention_tflops = {{64, 110, 80}, {128, 190, 160}};
  const Machine slowest = must(slowest_of(a, b));
  EXPECT_EQ(slowest.h2d_gb_s, 10);
  EXPECT_EQ(slowest.d2h_gb_s, 20);
  EXPECT_EQ(slowest.joint_gb_s, 25);
  EXPECT_EQ(slowest.internode_gb_s, 12);
  EXPECT_EQ(slowest.gpu_launch_us, 6);
  EXPECT_EQ(slowest.gpu_memory_bytes, a.gpu_memory_bytes);
  EXPECT_EQ(slowest.host_memory_bytes, b.host_memory_bytes);
  EXPECT_EQ(slowest.gpu_attention_tflops[0].forward_tflops, 100);
  EXPECT_EQ(slowest.gpu_attention_tflops[1].backward_tflops, 150);
  EXPECT_TRUE(slowest.by_gpus.empty());
  EXPECT_TRUE(check_machine(slowest).ok());
  // The order of nodes does not count, but for the name.
  Machine other = must(slowest_of(b, a));
  other.name = slowest.name;
  EXPECT_EQ(to_json(other), to_json(slowest));
  b.gpu_attention_tflops.pop_back();
  EXPECT_TRUE(must(slowest_of(a, b)).gpu_attention_tflops.empty());
}

TEST(SlowestOf, NodesOfUnlikeNumbersOfGpusAreRefused) {
  Machine a = some_machine(), b = some_machine();
  b.gpus /= 2;
  b.name = "small-node";
  expect_refused(slowest_of(a, b).status(), Code::kInvalidArgument, {"small-node has 2: "});
}

TEST(DeviceGbS, IsTheUpdatesWhereItIsNotKnown) {
  Machine machine = some_machine();  // four GPUs
  EXPECT_DOUBLE_EQ(device_gb_s(machine), 26 * 75.5 / 4);
  machine.gpu_memory_gb_s = 1400;
  EXPECT_EQ(device_gb_s(machine), 1400);
}

}  // namespace
}  // namespace elixir::planner
