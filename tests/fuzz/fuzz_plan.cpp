// Plan files. What is accepted is written and read again, to the same text.

#include "planner/plan/plan_json.h"
#include "planner/report/plan_text.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace elixir;
  const Result<planner::Plan> plan = planner::plan_from_json(fuzz::Input(data, size).rest_text());
  if (!plan.ok()) {
    ELIXIR_CHECK(plan.status().code() == Code::kBadInput, "{}", plan.status().message());
    return 0;
  }
  const std::string text = planner::to_json(*plan);
  const Result<planner::Plan> again = planner::plan_from_json(text);
  ELIXIR_CHECK(again.ok(), "{} in what was written: {}", again.status().message(), text);
  ELIXIR_CHECK(planner::to_json(*again) == text, "another plan was read than was written: {}",
               text);
  return 0;
}
