#include "ctl/plan_largest.h"

#include "ctl/search_progress.h"
#include "planner/estimate/estimate.h"

namespace elixir::ctl {
namespace {

void set(const std::string& what, int64_t value, planner::ModelRequest* model) {
  if (what == "batch") model->batch = value;
  if (what == "seq") model->seq = value;
  if (what == "layers") model->layers = value;
}

}  // namespace

Result<LargestPlan> largest_plan(const PlanArguments& arguments, const std::string& what,
                                 const planner::Machine& machine,
                                 const planner::PlanRequest& request) {
  if (!arguments.profile.empty()) {
    return error(Code::kInvalidArgument,
                 "--largest {} looks at many steps, and a profile is of one: give --model or "
                 "--config in --profile's place",
                 what);
  }
  const Result<planner::TransformerConfig> config = planner::config_of(arguments.model);
  if (!config.ok()) return config.status();
  uint64_t most = what == "layers" ? planner::kMaxLayers : planner::kMaxBatch;
  if (what == "seq") most = static_cast<uint64_t>(config->context);
  const SearchProgress progress;
  LargestPlan largest;
  Status why;  // the last refusal
  const auto room = [&](uint64_t value) -> Result<double> {
    ModelProfileRequest model = arguments.model;
    set(what, static_cast<int64_t>(value), &model);
    progress.looking_at(what, value);
    Result<planner::ModelProfile> profile = profile_of(arguments, model);
    if (!profile.ok()) return profile.status();
    const Result<planner::LeastPlan> least = planner::least_plan(*profile, machine, request);
    if (!least.ok()) return least.status();
    if (!least->fits()) {
      why = least->refusal;
    } else if (value > largest.value) {
      largest.value = value;
      largest.profile = std::move(*profile);
    }
    return least->room_bytes;
  };
  const Result<uint64_t> value = planner::largest_that_fits(room, most);
  if (!value.ok()) return value.status();
  if (*value == 0) return why;
  Result<planner::PlannedStep> planned = planner::make_plan(largest.profile, machine, request);
  if (!planned.ok()) return planned.status();
  largest.planned = std::move(*planned);
  return largest;
}

}  // namespace elixir::ctl
