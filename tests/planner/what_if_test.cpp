// What a change of the machine brings, and what a refused plan lacks.

#include "planner/report/what_if.h"

#include <nlohmann/json.hpp>

#include "planner/search/least_changes.h"
#include "tests/planner/gpt_profile.h"
#include "tests/planner/machines.h"
#include "tests/support/matchers.h"

namespace elixir::planner {
namespace {

using testing::a100_server;
using testing::gpt_profile;

constexpr uint64_t kOneGiB = uint64_t{1} << 30;

ModelProfile gpt_of(const char* model) {
  return gpt_profile(*transformer_config(model), {.batch = 4});
}

// 10 B parameters need 140 GB of states, and the host has 64 GiB.
Machine small_host(uint32_t gpus = 1) {
  Machine machine = a100_server(gpus);
  machine.host_memory_bytes = 64 * kOneGiB;
  return machine;
}

bool fits(const ModelProfile& profile, const Machine& machine) {
  return least_plan(profile, machine, {})->fits();
}

TEST(LeastChanges, WithEachItFitsAndWithOneLessItDoesNot) {
  for (const uint32_t gpus : {1u, 2u}) {
    const ModelProfile profile = gpt_of("gpt2-10b");
    const Machine machine = small_host(gpus);
    ASSERT_FALSE(fits(profile, machine));
    const LeastChanges changes = least_changes(profile, machine, {});
    ASSERT_GT(changes.host_memory_bytes, machine.host_memory_bytes);
    ASSERT_GT(changes.gpu_memory_bytes, machine.gpu_memory_bytes);
    ASSERT_GT(changes.gpus, gpus);
    for (const auto& [memory, bytes] :
         {std::pair{&Machine::host_memory_bytes, changes.host_memory_bytes},
          {&Machine::gpu_memory_bytes, changes.gpu_memory_bytes}}) {
      Machine changed = machine;
      changed.*memory = bytes;
      EXPECT_TRUE(fits(profile, changed)) << bytes;
      changed.*memory = bytes - kOneGiB;
      EXPECT_FALSE(fits(profile, changed)) << bytes;
    }
    Machine changed = a100_server(4);
    changed.host_memory_bytes = machine.host_memory_bytes;
    changed.gpus = changes.gpus;
    EXPECT_TRUE(fits(profile, changed));
    changed.gpus = changes.gpus - 1;
    EXPECT_FALSE(fits(profile, changed));
  }
}

TEST(LeastChanges, OnlyWhatHelpsIsNamed) {
  // Activations fill the GPU: neither the host's memory nor more GPUs help.
  ModelProfile profile = gpt_of("gpt2-small");
  profile.activation_bytes = 100 * kOneGiB;
  const LeastChanges changes = least_changes(profile, a100_server(1), {});
  EXPECT_EQ(changes.host_memory_bytes, 0u);
  EXPECT_EQ(changes.gpus, 0u);
  EXPECT_THAT(to_text(changes), ::testing::MatchesRegex("GPUs of [0-9]+ GiB"));
  // Nothing helps a model of an exabyte.
  profile.activation_bytes = uint64_t{1} << 60;
  EXPECT_EQ(to_text(least_changes(profile, a100_server(1), {})), "");
}

TEST(LeastChanges, AreSaidBehindARefusalAndNothingElse) {
  const ModelProfile profile = gpt_of("gpt2-10b");
  const Status refused = make_plan(profile, small_host(), {}).status();
  const Status said = with_least_changes(refused, profile, small_host(), {});
  EXPECT_EQ(said.code(), Code::kResourceExhausted);
  EXPECT_THAT(said.message(),
              AllOf(HasSubstr(refused.message()), HasSubstr("It fits with "),
                    HasSubstr(" GiB of host memory, or GPUs of "), HasSubstr(" GPUs")));
  const Status other = error(Code::kBadInput, "a broken file");
  EXPECT_EQ(with_least_changes(other, profile, small_host(), {}).message(), other.message());
}

TEST(WhatIf, EachRowIsThePlanOfItsMachine) {
  const ModelProfile profile = gpt_of("gpt2-small");
  Machine machine = a100_server(2);
  machine.gpu_memory_bytes = 3 * kOneGiB;
  const std::vector<WhatIfCase> cases = machine_changes(profile, machine);
  const std::vector<WhatIfRow> rows = must(what_if(cases, {}));
  ASSERT_EQ(rows.size(), cases.size());
  EXPECT_EQ(rows[0].change, "as it is");
  for (size_t i = 0; i < rows.size(); ++i) {
    const Result<PlannedStep> planned = make_plan(profile, cases[i].machine, {});
    ASSERT_EQ(rows[i].fits, planned.ok()) << rows[i].change;
    if (!planned.ok()) continue;
    EXPECT_EQ(rows[i].step_s, planned->plan.predicted.step_s) << rows[i].change;
    // More of anything is not slower but by the order of events (random_plans_test).
    EXPECT_GE(rows[i].tokens_s, 0.95 * rows[0].tokens_s) << rows[i].change;
  }
}

TEST(WhatIf, WhatDoesNotFitSaysWhatItLacks) {
  const ModelProfile profile = gpt_of("gpt2-10b");
  const std::vector<WhatIfRow> rows = must(what_if(machine_changes(profile, small_host()), {}));
  EXPECT_FALSE(rows[0].fits);
  EXPECT_THAT(rows[0].lacks, ::testing::StartsWith("host "));
  const nlohmann::json told = nlohmann::json::parse(to_json(rows));
  EXPECT_TRUE(told["rows"][0]["step_s"].is_null());
  EXPECT_EQ(told["rows"][0]["lacks"], rows[0].lacks);
  EXPECT_THAT(to_text(rows), HasSubstr(rows[0].lacks + " short"));
}

TEST(WhatIf, OneGpuHasNoCollectives) {
  const ModelProfile profile = gpt_of("gpt2-small");
  for (const uint32_t gpus : {1u, 2u}) {
    const std::vector<WhatIfCase> cases = machine_changes(profile, a100_server(gpus));
    const bool any = std::any_of(cases.begin(), cases.end(), [](const WhatIfCase& one) {
      return one.change.find("collectives") != std::string::npos;
    });
    EXPECT_EQ(any, gpus > 1);
  }
}

}  // namespace
}  // namespace elixir::planner
