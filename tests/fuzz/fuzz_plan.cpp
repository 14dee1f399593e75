// Plan files. What is accepted is written and read again, to the same text.

#include "planner/plan/plan_json.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace elixir;
  const Result<planner::Plan> plan = planner::plan_from_json(fuzz::Input(data, size).rest_text());
  if (fuzz::accepted(plan)) fuzz::check_rereads(*plan, planner::plan_from_json);
  return 0;
}
