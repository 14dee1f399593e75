#include "ctl/plan_largest.h"

#include <fmt/format.h>
#include <unistd.h>

#include <iostream>

#include "planner/estimate/estimate.h"
#include "planner/search/benefit.h"

namespace elixir::ctl {
namespace {

constexpr uint64_t kMostLayers = 4096;  // as config.json
constexpr uint64_t kMostSequences = planner::kMaxBatch;

void set(const std::string& what, uint64_t value, ModelProfileRequest* model) {
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
  const Result<planner::TransformerConfig> config = config_of_model(arguments.model);
  if (!config.ok()) return config.status();
  uint64_t most = what == "layers" ? kMostLayers : kMostSequences;
  if (what == "seq") most = static_cast<uint64_t>(config->context);
  const bool told = ::isatty(STDERR_FILENO) != 0;
  LargestPlan largest;
  Status why;  // the last refusal
  const auto room = [&](uint64_t value) -> Result<double> {
    ModelProfileRequest model = arguments.model;
    set(what, value, &model);
    if (told) std::cerr << fmt::format("elixirctl: {} {}\n", what, value);
    Result<planner::ModelProfile> profile = profile_of_model(model);
    if (!profile.ok()) return profile.status();
    planner::Shortage shortage;
    planner::PlanBytes least;
    const Result<planner::PlanBytes> bytes =
        planner::least_plan_bytes(*profile, machine, request, &least, &shortage);
    if (!bytes.ok()) {
      if (bytes.status().code() != Code::kResourceExhausted) return bytes.status();
      why = bytes.status();
      return -static_cast<double>(std::max<uint64_t>(shortage.gpu_bytes + shortage.host_bytes, 1));
    }
    if (value > largest.value) {
      largest.value = value;
      largest.profile = std::move(*profile);
    }
    return static_cast<double>(planner::allowed_bytes(machine, largest.profile)) -
           static_cast<double>(bytes->gpu_rcache + bytes->gpu_grad_blocks + bytes->gpu_states);
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
