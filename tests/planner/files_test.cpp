// Profiles and plans from files that anybody may have written.

#include <nlohmann/json.hpp>

#include "planner/plan/plan_json.h"
#include "planner/profile_json.h"
#include "planner/report/memory_picture.h"
#include "planner/report/predicted_trace.h"
#include "planner/search/make_plan.h"
#include "tests/planner/gpt_profile.h"
#include "tests/planner/machines.h"
#include "tests/support/matchers.h"

namespace elixir::planner {
namespace {

using nlohmann::json;

json profile_file() {
  return json{{"params",
               {{{"name", "a"}, {"numel", 300}, {"shared", false}},
                {{"name", "b"}, {"numel", 200}, {"shared", true}}}},
              {"steps", {{0}, {1}, {1}, {0}}},
              {"checkpoint_regions", {{1, 2}}},
              {"activation_bytes", 1000},
              {"buffer_bytes", 10},
              {"dtype_bytes", 2}};
}

void expect_bad_profile(const json& file, const char* words) {
  expect_refused(profile_from_json(file.dump()).status(), Code::kBadInput, {words});
}

TEST(ProfileFile, WhatIsWrittenIsRead) {
  ModelProfile profile = testing::gpt_profile(*transformer_config("gpt2-nano"));
  profile.step_flops.assign(profile.steps.size(), 1.5);
  profile.activation_bytes = 0xfedcba9876543210;  // more than a double can hold exactly
  const ModelProfile read = must(profile_from_json(to_json(profile)));
  EXPECT_EQ(to_json(read), to_json(profile));
  EXPECT_EQ(read.activation_bytes, profile.activation_bytes);
  EXPECT_EQ(read.steps, profile.steps);
}

TEST(ProfileFile, EveryFieldIsNeeded) {
  const json whole = profile_file();
  ASSERT_TRUE(profile_from_json(whole.dump()).ok());
  for (const auto& [name, value] : whole.items()) {
    json file = whole;
    file.erase(name);
    expect_bad_profile(file, name.c_str());
    file[name] = "text";
    expect_bad_profile(file, name.c_str());
  }
}

TEST(ProfileFile, BadValuesAreNamed) {
  const std::tuple<const char*, json, const char*> kValues[] = {
      {"/params/1/numel", -5, "params[1].numel is -5"},
      {"/params/1/name", "a", "stands twice"},
      {"/steps/2", {7}, "parameter 7, which is unknown"},
      {"/checkpoint_regions", {{2, 1}}, "checkpoint_regions[0]"},
      {"/activation_bytes", 1.5, "activation_bytes"},
      {"/dtype_bytes", 3, "dtype_bytes = 3"}};
  for (const auto& [path, value, says] : kValues) {
    json file = profile_file();
    file[json::json_pointer(path)] = value;
    expect_bad_profile(file, says);
  }
  EXPECT_FALSE(profile_from_json("").ok());
  EXPECT_FALSE(profile_from_json("[1").ok());
}

// A message must not descend as deeply as a file is nested.
TEST(ProfileFile, DeepNestingIsAMessage) {
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  std::string file = profile_file().dump();
  const std::string needle = "\"numel\":300";
  file.replace(file.find(needle), needle.size(), "\"numel\":" + deep);
  EXPECT_EQ(profile_from_json(file).status().code(), Code::kBadInput);
  EXPECT_EQ(plan_from_json(R"({"gpus": )" + deep + "}").status().code(), Code::kBadInput);
}

TEST(PlanFile, WhatCannotBeIsRefused) {
  const ModelProfile profile = testing::gpt_profile(*transformer_config("gpt2-4b"));
  const json whole = json::parse(to_json(make_plan(profile, testing::a100_server(1), {})->plan));
  ASSERT_TRUE(plan_from_json(whole.dump()).ok());
  const auto refused = [&](const char* name, const json& value) {
    json file = whole;
    file[name] = value;
    EXPECT_EQ(plan_from_json(file.dump()).status().code(), Code::kBadInput) << name << value;
  };
  refused("chunk_numel", 0);
  refused("chunk_numel", uint64_t{1} << 53);
  refused("n_chunks", 0);
  refused("rcache_blocks", 1'000'000);
  refused("placement", {{"gpu", 4'000'000'000u}, {"cpu", 4'000'000'000u}, {"swing", 0}});
  refused("placement", {{"gpu", 0}, {"cpu", 0}, {"swing", 0}});
  for (const char* name : {"exchange", "dtype", "update"}) refused(name, "pigeon");
  // What a run is held against must be there: a file of an earlier release does not say it.
  for (const char* name : {"order", "own_chunks", "dtype", "update", "checkpoint_activations",
                           "accumulate", "placement"}) {
    json file = whole;
    file.erase(name);
    const Status status = plan_from_json(file.dump()).status();
    EXPECT_NE(status.message().find(name), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("make it again"), std::string::npos) << status.message();
  }
  refused("gpus", -1);
  refused("spare_slots", -1);
}

TEST(PlanFile, SaysWhenUpdatesAreAndAnOlderOneHasNoSpareSlots) {
  const ModelProfile profile = testing::gpt_profile(*transformer_config("gpt2-4b"));
  PlanRequest request{.layout = {.spare_slots = 2}};
  json file = json::parse(to_json(make_plan(profile, testing::a100_server(1), request)->plan));
  EXPECT_EQ(file["update"], "early");
  EXPECT_EQ(file["spare_slots"], 2);
  Result<Plan> read = plan_from_json(file.dump());
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->update, UpdateMode::kEarly);
  EXPECT_EQ(read->chosen.spare_slots, 2u);
  file["update"] = "deferred";  // slots are of no use then
  EXPECT_THAT(plan_from_json(file.dump()).status().message(), HasSubstr("2 spare slots"));
  file["update"] = "early";
  file["spare_slots"] = 1'000'000;
  EXPECT_THAT(plan_from_json(file.dump()).status().message(), HasSubstr("1000000 spare slots"));
  file["update"] = "deferred";
  file.erase("spare_slots");
  read = plan_from_json(file.dump());
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->update, UpdateMode::kDeferred);
  EXPECT_EQ(read->chosen.spare_slots, 0u);
}

// The order in which a file lists the parameters changes nothing.
TEST(ProfileFile, ParametersArePackedByFirstUse) {
  const auto plan_of = [](const std::vector<std::string>& names) {
    ModelProfile profile;
    const std::vector<std::string> used = {"a", "b", "c", "d"};
    const uint64_t numel[] = {1000, 600, 900, 700};
    for (const std::string& name : names) {
      profile.params.push_back({name, numel[name[0] - 'a']});
    }
    const auto index = [&](const std::string& name) {
      return static_cast<uint32_t>(std::find(names.begin(), names.end(), name) - names.begin());
    };
    for (const std::string& name : used) profile.steps.push_back({index(name)});
    for (auto name = used.rbegin(); name != used.rend(); ++name) {
      profile.steps.push_back({index(*name)});
    }
    profile.tokens = 8;
    return to_json(make_plan(profile, testing::a100_server(1), {})->plan);
  };
  const std::string plan = plan_of({"a", "b", "c", "d"});
  EXPECT_EQ(plan_of({"d", "a", "c", "b"}), plan);
  EXPECT_EQ(plan_of({"c", "b", "a", "d"}), plan);
}

// Many parameters in one operator take no time that grows with their square.
TEST(ProfileFile, ManyParametersInOneOperator) {
  ModelProfile profile;
  std::vector<uint32_t> all;
  for (uint32_t i = 0; i < 20'000; ++i) {
    profile.params.push_back({std::to_string(i), 128, /*shared=*/true});
    all.push_back(i);
  }
  profile.steps = {all, all};
  profile.tokens = 8;
  EXPECT_TRUE(make_plan(profile, testing::a100_server(1), {}).ok());
}

TEST(Reports, ThePictureIsWellFormed) {
  ModelProfile profile = testing::gpt_profile(*transformer_config("gpt2-4b"));
  profile.model = "a<b & c";
  const PlannedStep planned = must(make_plan(profile, testing::a100_server(1), {}));
  const std::string svg = memory_picture(planned.plan, profile, planned.gpu_memory_bytes);
  EXPECT_THAT(svg, HasSubstr("a&lt;b &amp; c"));
  for (const char* part : {"rcache", "grad_blocks", "states", "activations", "capacity"}) {
    EXPECT_THAT(svg, HasSubstr(std::string("class=\"") + part));
  }
  for (const char* axis : {">GiB<", "one step: the operators of forward", "memory of the GPU, "}) {
    EXPECT_THAT(svg, HasSubstr(axis));
  }
}

TEST(Reports, TheTraceHasEverySpan) {
  const ModelProfile profile = testing::gpt_profile(*transformer_config("gpt2-4b"));
  const Result<PlannedStep> planned = make_plan(profile, testing::a100_server(1), {});
  std::vector<StepSpan> spans;
  ASSERT_TRUE(simulate_step(planned->step, &spans).ok());
  ASSERT_GT(spans.size(), 10u);
  const json trace = json::parse(predicted_trace(spans));
  size_t found = 0;
  for (const json& event : trace["traceEvents"]) found += event["ph"] == "X";
  EXPECT_EQ(found, spans.size());
}

}  // namespace
}  // namespace elixir::planner
