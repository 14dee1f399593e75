#include "ctl/plan_largest.h"

#include <utility>

#include "ctl/search_progress.h"
#include "planner/estimate/estimate.h"
#include "planner/estimate/report.h"

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
  Status why;                                            // the last refusal
  planner::BatchProfiles profiles([&](uint64_t value) {  // by value
    ModelProfileRequest model = arguments.model;
    set(what, static_cast<int64_t>(value), &model);
    progress.looking_at(what, value);
    return profile_of(arguments, model);
  });
  const auto room_for = [&](uint64_t value,
                            const planner::PlanRequest& asked) -> Result<planner::LeastPlan> {
    const Result<const planner::ModelProfile*> profile = profiles.at(value);
    if (!profile.ok()) return profile.status();
    return planner::least_plan(**profile, machine, asked);
  };
  const auto largest_of = [&](const planner::PlanRequest& asked) {
    return planner::largest_that_fits(
        [&](uint64_t value) -> Result<double> {
          const Result<planner::LeastPlan> least = room_for(value, asked);
          if (!least.ok()) return least.status();
          if (!least->fits()) why = least->refusal;
          return least->room_bytes;
        },
        most);
  };
  const Result<uint64_t> value = largest_of(request);
  if (!value.ok()) return value.status();
  if (*value == 0) return why;
  largest.value = largest.on_device = *value;
  largest.profile = **profiles.at(*value);
  Result<planner::PlannedStep> planned = planner::make_plan(largest.profile, machine, request);
  if (!planned.ok()) return planned.status();
  largest.planned = std::move(*planned);
  const Result<planner::LeastPlan> least = room_for(*value, request);
  if (least.ok() && least->sends) {
    planner::PlanRequest on_device = request;
    on_device.regions = {.mode = Activations::Mode::kRecompute};
    const Result<uint64_t> without = largest_of(on_device);
    if (!without.ok()) return without.status();
    largest.on_device = *without;
  }
  return largest;
}

}  // namespace elixir::ctl
