// The search, for a profile or a machine of somebody's file beside a good one; the first bytes say
// which, and what is asked. What is found fits the machine, can be shown, and is read again.

#include <cmath>

#include "planner/machine_json.h"
#include "planner/plan/plan_json.h"
#include "planner/profile_json.h"
#include "planner/report/plan_text.h"
#include "planner/search/make_plan.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/planner/gpt_profile.h"
#include "tests/planner/machines.h"

namespace elixir::fuzz {
namespace {

planner::ModelProfile small_profile() {
  planner::TransformerConfig config = *planner::transformer_config("gpt2-nano");
  config.layers = 1;
  return planner::testing::gpt_profile(config, {.batch = 1, .seq = 64});
}

void check_plan(const planner::Plan& plan, const planner::Machine& machine) {
  ELIXIR_CHECK(std::isfinite(plan.predicted.step_s) && plan.predicted.step_s >= 0, "{} s",
               plan.predicted.step_s);
  ELIXIR_CHECK(plan.bytes.gpu() <= machine.gpu_memory_bytes, "{} bytes of a GPU's {}",
               plan.bytes.gpu(), machine.gpu_memory_bytes);
  ELIXIR_CHECK(plan.placement.gpu + plan.placement.cpu + plan.placement.swing <= plan.n_chunks,
               "more states than chunks");
  ELIXIR_CHECK(!planner::plan_text(plan).empty(), "no text");
  const std::string text = planner::to_json(plan);
  const Result<planner::Plan> again = planner::plan_from_json(text);
  ELIXIR_CHECK(again.ok(), "{} in {}", again.status().message(), text);
}

}  // namespace
}  // namespace elixir::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace elixir;
  static const planner::ModelProfile good_profile = fuzz::small_profile();
  static const planner::Machine good_machine = planner::testing::a100_server(2);
  fuzz::Input input(data, size);
  const bool foreign_machine = input.flag();
  const planner::PlanRequest request{.update = static_cast<UpdateMode>(input.below(3)),
                                     .accumulate = 1 + input.below(3)};
  Result<planner::Machine> machine =
      foreign_machine ? planner::machine_from_json(input.rest_text()) : good_machine;
  Result<planner::ModelProfile> profile =
      foreign_machine ? good_profile : planner::profile_from_json(input.rest_text());
  if (!machine.ok() || !profile.ok()) return 0;
  const Result<planner::PlannedStep> planned = planner::make_plan(*profile, *machine, request);
  if (planned.ok()) {
    fuzz::check_plan(planned->plan, *machine);
    return 0;
  }
  const Code code = planned.status().code();
  ELIXIR_CHECK(
      code == Code::kBadInput || code == Code::kInvalidArgument || code == Code::kResourceExhausted,
      "{}: {}", code_name(code), planned.status().message());
  return 0;
}
