// Profiles of models. What is accepted passes check_profile(), survives a round trip, and can be
// put into the order of first use.

#include "planner/profile_json.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace elixir;
  const Result<planner::ModelProfile> profile =
      planner::profile_from_json(fuzz::Input(data, size).rest_text());
  if (!fuzz::accepted(profile)) return 0;
  fuzz::check_rereads(*profile, planner::profile_from_json);
  const planner::ModelProfile ordered = planner::in_first_use_order(*profile);
  const Status checked = planner::check_profile(ordered);
  ELIXIR_CHECK(checked.ok(), "in the order of first use: {}", checked.message());
  ELIXIR_CHECK(ordered.total_numel() == profile->total_numel() &&
                   ordered.trained_numel() == profile->trained_numel(),
               "a parameter was lost");
  return 0;
}
