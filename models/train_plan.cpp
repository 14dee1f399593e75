#include "models/train_plan.h"

#include <ATen/Functions.h>

#include <iostream>

#include "base/log.h"
#include "base/printable.h"
#include "base/text_file.h"
#include "base/throw_error.h"
#include "client/profile/profile.h"
#include "client/train/choose_plan.h"
#include "planner/activations.h"
#include "planner/kept_regions.h"
#include "planner/plan/plan_json.h"
#include "planner/report/memory_picture.h"
#include "planner/report/plan_text.h"
#include "planner/report/predicted_trace.h"

namespace elixir {
namespace {

// `profile_by`: profile_step() or profile_or_measure().
template <typename ProfileBy>
auto profile_of(Decoder& model, const TrainOptions& options, ProfileBy&& profile_by) {
  ProfileOptions profile;
  profile.model = options.config.name;
  profile.tokens = static_cast<uint64_t>(options.model.batch * options.model.seq);
  profile.dtype = options.run.dtype;
  profile.target = options.run.device == "cpu" ? ProfileTarget::kCpu : ProfileTarget::kCuda;
  const auto loss = [&](at::Device device) {
    const at::Tensor tokens = at::zeros({options.model.batch, options.model.seq},
                                        at::TensorOptions().dtype(at::kLong).device(device));
    return model.loss(tokens, tokens);
  };
  model.train();
  return profile_by(tensors_of(model), loss, profile);
}

void write_reports(const TrainOptions& options, const planner::PlannedStep& planned,
                   const planner::ModelProfile& profile, uint64_t memory_bytes) {
  if (!options.memory_picture.empty()) {
    throw_if_error(write_text_file(options.memory_picture,
                                   planner::memory_picture(planned.plan, profile, memory_bytes)));
  }
  if (options.predicted_trace.empty()) return;
  std::vector<planner::StepSpan> spans;
  value_or_throw(planner::simulate_step(planned.step, &spans));
  throw_if_error(write_text_file(options.predicted_trace, planner::predicted_trace(spans)));
}

void require_no_reports(const TrainOptions& options) {
  if (options.memory_picture.empty() && options.predicted_trace.empty()) return;
  throw Error(
      error(Code::kInvalidArgument,
            "--memory-picture and --predicted-trace show the planner's choice, and the "
            "planner has not chosen here: leave out --plan, --no-plan, --strategy, --chunk-numel, "
            "--rcache-blocks and --gpu-state-share (--long-blocks, --spare-slots, "
            "--swing-stride and --exchange go with it), and on the CPU give --gpu-memory"));
}

planner::Plan read_plan(const std::string& path) {
  const Result<planner::Plan> plan = planner::plan_from_json(value_or_throw(read_text_file(path)));
  if (plan.ok()) return *plan;
  throw Error(Status(plan.status().code(), path + ": " + plan.status().message()));
}

// The command line follows the plan's type and its checkpointing (models/train_model.h).
void compare_batch(const planner::Plan& plan, const TrainOptions& options,
                   const LaunchEnvironment& environment) {
  const auto tokens = static_cast<uint64_t>(options.model.batch * options.model.seq);
  if (plan.tokens == tokens || environment.rank != 0) return;
  log_warn("plan_of_another_batch",
           "plan_tokens={} tokens={} effect=\"its prediction and its memory are not this run's\"",
           plan.tokens, tokens);
}

RegionPlan regions_of(const planner::ModelProfile& profile, const Options& run) {
  const auto n = static_cast<uint32_t>(profile.regions.size());
  const bool by_plan = run.activations.mode == Activations::Mode::kAuto ||
                       (run.plan && run.activations.mode == Activations::Mode::kHost);
  if (!by_plan) return region_plan_for(run.activations, n);
  return run.plan && run.plan->region_plan.regions == n ? run.plan->region_plan : RegionPlan();
}

}  // namespace

uint64_t program_bytes(Decoder& model, const TrainOptions& options) {
  if (options.run.device != "cpu") return 0;
  // malloc keeps what is freed (keep_freed_memory), in pieces that not every tensor fits into.
  constexpr double kFragmentation = 1.25;
  const Result<planner::ModelProfile> profile = profile_of(model, options, profile_step);
  if (!profile.ok()) return 0;  // not known
  const planner::ModelProfile kept =
      planner::with_regions(*profile, regions_of(*profile, options.run));
  return kept.buffer_bytes +
         static_cast<uint64_t>(kFragmentation * static_cast<double>(kept.activation_bytes));
}

std::shared_ptr<const planner::Plan> plan_training(Decoder& model, const TrainOptions& options,
                                                   const LaunchEnvironment& environment) {
  if (!options.plan_file.empty()) {
    require_no_reports(options);
    auto plan = std::make_shared<planner::Plan>(read_plan(options.plan_file));
    compare_batch(*plan, options, environment);
    return plan;
  }
  std::optional<planner::PlannedStep> planned;
  if (plan_is_wanted(options.run) && !options.no_plan) {
    const planner::ModelProfile profile = profile_of(model, options, profile_or_measure);
    const bool reports = !options.memory_picture.empty() || !options.predicted_trace.empty();
    planned = value_or_throw(choose_plan(profile, options.run, environment,
                                         reports ? CachedPlans::kIgnored : CachedPlans::kTaken));
    if (planned && environment.rank == 0) {
      std::cout << printable(planner::plan_text(planned->plan), /*lines=*/true) << std::flush;
      write_reports(options, *planned, profile, planned->gpu_memory_bytes);
    }
  }
  if (planned) return std::make_shared<planner::Plan>(std::move(planned->plan));
  require_no_reports(options);
  return nullptr;
}

}  // namespace elixir
