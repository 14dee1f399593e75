#include "models/train_plan.h"

#include <ATen/Functions.h>

#include <iostream>

#include "base/error.h"
#include "base/log.h"
#include "base/text_file.h"
#include "client/profile/profile.h"
#include "client/train/choose_plan.h"
#include "planner/plan_json.h"
#include "planner/report/memory_picture.h"
#include "planner/report/plan_text.h"
#include "planner/report/predicted_trace.h"

namespace elixir {
namespace {

planner::ModelProfile profile_of(Gpt2& model, const TrainOptions& options,
                                 const RuntimeOptions& runtime) {
  ProfileOptions profile;
  profile.model = "gpt2-" + options.model.name;
  profile.tokens = static_cast<uint64_t>(options.batch * options.seq);
  profile.dtype = runtime.dtype;
  profile.target = runtime.device.is_cpu() ? ProfileTarget::kCpu : ProfileTarget::kCuda;
  const auto loss = [&](at::Device device) {
    const at::Tensor tokens = at::zeros({options.batch, options.seq},
                                        at::TensorOptions().dtype(at::kLong).device(device));
    return model.loss(tokens, tokens);
  };
  model.train();
  return profile_or_measure(model, loss, profile);
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
  throw Error(error(Code::kInvalidArgument,
                    "--memory-picture and --predicted-trace show the planner's choice, and there "
                    "is none here: leave out --plan, --strategy, --chunk-numel, --rcache-blocks "
                    "and --gpu-home-share, and on the CPU give --gpu-memory"));
}

planner::Plan read_plan(const std::string& path) {
  const Result<planner::Plan> plan = planner::plan_from_json(value_or_throw(read_text_file(path)));
  if (plan.ok()) return *plan;
  throw Error(Status(plan.status().code(), path + ": " + plan.status().message()));
}

}  // namespace

std::optional<TrainingPlan> plan_training(Gpt2& model, const TrainOptions& options,
                                          const RuntimeOptions& runtime,
                                          const LaunchEnvironment& environment) {
  if (!options.plan.empty()) {
    require_no_reports(options);
    const planner::ModelProfile profile = profile_of(model, options, runtime);
    const planner::Plan plan = read_plan(options.plan);
    if (plan.tokens != profile.tokens && environment.rank == 0) {
      log_warn("plan_of_another_batch",
               "plan_tokens={} tokens={} effect=\"its prediction and its "
               "memory are not this run's\"",
               plan.tokens, profile.tokens);
    }
    return training_plan(profile, plan);
  }
  if (!plan_is_wanted(runtime)) {
    require_no_reports(options);
    return std::nullopt;
  }
  const planner::ModelProfile profile = profile_of(model, options, runtime);
  const std::optional<planner::PlannedStep> planned =
      value_or_throw(choose_plan(profile, runtime, environment));
  if (!planned) {
    require_no_reports(options);
    return std::nullopt;
  }
  if (environment.rank == 0) {
    std::cout << planner::plan_text(planned->plan) << std::flush;
    write_reports(options, *planned, profile, planned->gpu_memory_bytes);
  }
  return training_plan(profile, planned->plan);
}

}  // namespace elixir
