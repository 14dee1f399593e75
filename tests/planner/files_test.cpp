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
  const size_t steps = profile.steps.size();
  profile.step_flops.assign(steps, 1.5);
  profile.step_work.assign(steps, {.products = {{1, 2, 3, 4}, {5, 6, 7, 8}},
                                   .attention_flops = 0.5,
                                   .attention_head = 64,
                                   .bytes = 0.25,
                                   .kernels = 3});
  profile.activation_bytes = 0xfedcba9876543210;  // more than a double can hold exactly
  const ModelProfile read = must(profile_from_json(to_json(profile)));
  EXPECT_EQ(to_json(read), to_json(profile));
  EXPECT_EQ(read.activation_bytes, profile.activation_bytes);
  EXPECT_EQ(read.steps, profile.steps);
  const OperatorWork& work = read.step_work.at(steps - 1);
  EXPECT_EQ(work.products[1].inner, 8u);
  EXPECT_EQ(work.attention_flops, 0.5);
  EXPECT_EQ(work.attention_head, 64u);
  EXPECT_EQ(work.bytes, 0.25);
  EXPECT_EQ(work.kernels, 3u);
}

TEST(ProfileFile, WorkIsThereForEachStepOrNotAtAll) {
  json whole = profile_file();
  whole["step_flops"] = {1, 1, 1, 1};
  whole["step_bytes"] = {1, 1, 1, 1};
  whole["step_kernels"] = {1, 1, 1, 1};
  whole["step_attention_flops"] = {1, 1, 1, 1};
  whole["step_products"] = {json::array(), {{1, 2, 3, 4}}, json::array(), json::array()};
  ASSERT_TRUE(profile_from_json(whole.dump()).ok());
  for (const char* name :
       {"step_flops", "step_bytes", "step_kernels", "step_attention_flops", "step_products"}) {
    json file = whole;
    file.erase(name);
    expect_bad_profile(file, name);
    file[name] = json::array({1});
    expect_bad_profile(file, name);
  }
  const std::tuple<const char*, json, const char*> kValues[] = {
      {"/step_bytes/1", -1, "step_bytes holds -1"},
      {"/step_attention_flops/0", 1e30, "step_attention_flops holds 1e+30"},
      {"/step_kernels/2", -1, "step_kernels[2] is -1"},
      {"/step_products/1/0", {1, 2, 3}, "each product is [count, rows, columns, inner]"},
      {"/step_products/1/0/2", uint64_t{1} << 50, "step_products holds 1125899906842624"}};
  for (const auto& [path, value, says] : kValues) {
    json file = whole;
    file[json::json_pointer(path)] = value;
    expect_bad_profile(file, says);
  }
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

TEST(PlanFile, ACurveKeepsItsPeaks) {
  std::vector<uint64_t> curve(1000);
  for (size_t i = 0; i < curve.size(); ++i) curve[i] = i * 1000 / (i + 1) + (i == 777 ? 5000 : 0);
  const std::vector<uint64_t> thinned = thinned_curve(curve, kMostCurvePoints);
  EXPECT_EQ(thinned.size(), kMostCurvePoints);
  EXPECT_EQ(*std::max_element(thinned.begin(), thinned.end()), curve[777]);
  EXPECT_EQ(thinned_curve({3, 1}, kMostCurvePoints), (std::vector<uint64_t>{3, 1}));
  EXPECT_TRUE(thinned_curve({}, kMostCurvePoints).empty());

  ModelProfile profile = testing::gpt_profile(*transformer_config("gpt2-4b"));
  profile.activation_curve.assign(profile.steps.size(), 1 << 20);
  profile.activation_curve[profile.steps.size() / 2] = profile.activation_bytes;
  const Plan plan = must(make_plan(profile, testing::a100_server(1), {})).plan;
  EXPECT_EQ(plan.capacity_bytes, testing::a100_server(1).gpu_memory_bytes);
  const Plan read = must(plan_from_json(to_json(plan)));
  EXPECT_EQ(read.capacity_bytes, plan.capacity_bytes);
  EXPECT_EQ(read.curve_bytes, plan.curve_bytes);
  EXPECT_EQ(*std::max_element(read.curve_bytes.begin(), read.curve_bytes.end()),
            profile.activation_bytes);

  json file = json::parse(to_json(plan));
  file["activation_curve"] = std::vector<uint64_t>(kMostCurvePoints + 1, 1);
  EXPECT_THAT(plan_from_json(file.dump()).status().message(),
              HasSubstr("activation_curve has 257 values, and at most 256 are possible"));
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
