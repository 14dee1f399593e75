// elixirctl plan: how a model would be trained on a machine.

#include <iostream>
#include <memory>
#include <string>

#include "base/text_file.h"
#include "base/units.h"
#include "ctl/command.h"
#include "ctl/model_profile.h"
#include "planner/machine_cache.h"
#include "planner/machine_json.h"
#include "planner/plan_json.h"
#include "planner/profile_json.h"
#include "planner/report/memory_picture.h"
#include "planner/report/plan_text.h"
#include "planner/report/predicted_trace.h"
#include "planner/search/make_plan.h"

namespace elixir::ctl {
namespace {

struct PlanArguments {
  ModelProfileRequest model;
  std::string profile, machine;  // files
  std::string gpu_memory, host_memory;
  int64_t gpus = 0;  // 0: as the machine file says
  std::string policy = "elixir", exchange = "auto", update = "deferred";
  int64_t chunk_numel = 0, rcache_blocks = 0;
  double gpu_home_share = -1;
  bool swing = false, json = false;
  bool tokens_given = false;                  // --batch or --seq
  std::string output, trace, memory_picture;  // files to write
};

Result<planner::ModelProfile> profile_of(const PlanArguments& arguments) {
  const int sources = !arguments.profile.empty() + !arguments.model.model.empty() +
                      !arguments.model.config_path.empty();
  if (sources != 1) {
    return error(Code::kInvalidArgument,
                 "{} of --model, --config and --profile are given: give one (--model gpt2-10b)",
                 sources);
  }
  if (arguments.profile.empty()) return profile_of_model(arguments.model);
  const Result<std::string> text = read_text_file(arguments.profile);
  if (!text.ok()) return text.status();
  Result<planner::ModelProfile> profile = planner::profile_from_json(*text);
  if (profile.ok() && profile->tokens != 0 && arguments.tokens_given) {
    return error(Code::kInvalidArgument,
                 "{} is of a step of {} tokens: leave out --batch and --seq, or make a profile "
                 "with them",
                 arguments.profile, profile->tokens);
  }
  if (profile.ok()) return profile;
  return Status(profile.status().code(),
                fmt::format("{}: {}", arguments.profile, profile.status().message()));
}

Status read_bytes(const char* flag, const std::string& text, std::optional<uint64_t>* bytes) {
  if (text.empty()) return Status();
  const Result<uint64_t> parsed = parse_bytes(text);
  if (!parsed.ok())
    return Status(Code::kInvalidArgument, fmt::format("{}: {}", flag, parsed.status().message()));
  *bytes = *parsed;
  return Status();
}

Result<planner::Machine> machine_of(const PlanArguments& arguments) {
  planner::MachineOverrides overrides;
  if (arguments.gpus != 0) overrides.gpus = static_cast<uint32_t>(arguments.gpus);
  ELIXIR_RETURN_IF_ERROR(
      read_bytes("--gpu-memory", arguments.gpu_memory, &overrides.gpu_memory_bytes));
  ELIXIR_RETURN_IF_ERROR(
      read_bytes("--host-memory", arguments.host_memory, &overrides.host_memory_bytes));
  const Result<std::string> cached = planner::machine_cache_path();
  if (arguments.machine.empty() && !cached.ok()) return cached.status();
  const std::string& path = arguments.machine.empty() ? *cached : arguments.machine;
  const Result<std::string> text = read_text_file(path);
  if (!text.ok()) {
    if (!arguments.machine.empty()) return text.status();
    return error(Code::kBadInput,
                 "this machine has not been measured ({}): run 'elixirctl probe', or give a "
                 "--machine FILE",
                 text.status().message());
  }
  Result<planner::Machine> machine = planner::machine_from_json(*text, overrides);
  if (machine.ok()) return machine;
  return Status(machine.status().code(), fmt::format("{}: {}", path, machine.status().message()));
}

Result<planner::PlanRequest> request_of(const PlanArguments& arguments) {
  planner::PlanRequest request;
  if (arguments.policy == "paper") request.policy = planner::Policy::kPaper;
  if (arguments.policy == "zero2-offload") request.policy = planner::Policy::kZero2Offload;
  if (arguments.policy == "zero3-offload") request.policy = planner::Policy::kZero3Offload;
  request.tokens = arguments.model.batch * arguments.model.seq;
  request.chunk_numel = static_cast<uint64_t>(arguments.chunk_numel);
  if (arguments.rcache_blocks > 0) {
    request.rcache_blocks = static_cast<uint32_t>(arguments.rcache_blocks);
  }
  if (arguments.gpu_home_share >= 0) request.gpu_home_share = arguments.gpu_home_share;
  if (arguments.exchange != "auto") {
    request.exchange =
        arguments.exchange == "host" ? planner::Exchange::kHost : planner::Exchange::kCollective;
  }
  if (arguments.update == "immediate") request.update = planner::UpdateTime::kImmediate;
  if (arguments.update == "sync") request.update = planner::UpdateTime::kAfterBackward;
  request.swing = arguments.swing;
  request.whole_masters = arguments.model.dtype == "fp16";
  return request;
}

Status write_reports(const PlanArguments& arguments, const planner::PlannedStep& planned,
                     const planner::ModelProfile& profile, const planner::Machine& machine) {
  if (!arguments.output.empty()) {
    ELIXIR_RETURN_IF_ERROR(
        write_text_file(arguments.output, planner::to_json(planned.plan) + "\n"));
  }
  if (!arguments.trace.empty()) {
    std::vector<planner::StepSpan> spans;
    const Result<planner::StepTimes> times = planner::simulate_step(planned.step, &spans);
    if (!times.ok()) return times.status();
    ELIXIR_RETURN_IF_ERROR(write_text_file(arguments.trace, planner::predicted_trace(spans)));
  }
  if (arguments.memory_picture.empty()) return Status();
  return write_text_file(arguments.memory_picture,
                         planner::memory_picture(planned.plan, profile, machine.gpu_memory_bytes));
}

Status plan_command(const PlanArguments& arguments) {
  // The machine first: it is read in no time, a model's profile takes a moment.
  const Result<planner::Machine> machine = machine_of(arguments);
  if (!machine.ok()) return machine.status();
  const Result<planner::PlanRequest> request = request_of(arguments);
  if (!request.ok()) return request.status();
  const Result<planner::ModelProfile> profile = profile_of(arguments);
  if (!profile.ok()) return profile.status();
  const Result<planner::PlannedStep> planned = planner::make_plan(*profile, *machine, *request);
  if (!planned.ok()) return planned.status();
  ELIXIR_RETURN_IF_ERROR(write_reports(arguments, *planned, *profile, *machine));
  std::cout << (arguments.json ? planner::to_json(planned->plan) + "\n"
                               : planner::plan_text(planned->plan));
  return Status();
}

void add_model_flags(CLI::App* plan, PlanArguments* arguments) {
  constexpr int64_t kMost = 1 << 30;
  plan->add_option("--model", arguments->model.model, "A known model: gpt2-10b, opt-175b, ...");
  plan->add_option("--config", arguments->model.config_path, "A Hugging Face config.json");
  plan->add_option("--profile", arguments->profile, "A profile that 'elixirctl profile' wrote");
  plan->add_option("--batch", arguments->model.batch, "Sequences a step and GPU")
      ->check(CLI::Range(int64_t{1}, kMost));
  plan->add_option("--seq", arguments->model.seq, "Tokens a sequence")
      ->check(CLI::Range(int64_t{1}, kMost));
  plan->add_option("--dtype", arguments->model.dtype, "Of parameters and activations")
      ->check(CLI::IsMember({"bf16", "fp16", "fp32"}));
  plan->add_flag("--checkpoint-activations,!--no-checkpoint-activations",
                 arguments->model.checkpoint_activations,
                 "Recompute activations in backward (the default here)");
}

void add_machine_flags(CLI::App* plan, PlanArguments* arguments) {
  plan->add_option("--machine", arguments->machine,
                   "What the machine can do (default: what 'elixirctl probe' measured here)");
  plan->add_option("--gpus", arguments->gpus, "GPUs of the node, in the machine file's place")
      ->check(CLI::Range(int64_t{1}, int64_t{65536}));
  plan->add_option("--gpu-memory", arguments->gpu_memory, "Of one GPU (40GiB)");
  plan->add_option("--host-memory", arguments->host_memory, "Of the node (500GiB)");
}

void add_choice_flags(CLI::App* plan, PlanArguments* arguments) {
  plan->add_option("--policy", arguments->policy,
                   "elixir: this runtime; paper: as arXiv 2212.05339 v2 chooses and overlaps; the "
                   "others: what they would do, for comparison")
      ->check(CLI::IsMember({"elixir", "paper", "zero2-offload", "zero3-offload"}));
  plan->add_option("--exchange", arguments->exchange, "Between GPUs")
      ->check(CLI::IsMember({"auto", "host", "collective"}));
  plan->add_option("--update", arguments->update, "When elixird updates")
      ->check(CLI::IsMember({"deferred", "immediate", "sync"}));
  plan->add_option("--chunk-numel", arguments->chunk_numel, "Elements a chunk; 0: chosen")
      ->check(CLI::Range(int64_t{0}, static_cast<int64_t>(planner::kMaxParameterNumel)));
  plan->add_option("--rcache-blocks", arguments->rcache_blocks, "Gathered chunks; 0: chosen")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 20));
  plan->add_option("--gpu-home-share", arguments->gpu_home_share,
                   "Chunks with states on the GPU, 0 to 1 (default: chosen)")
      ->check(CLI::Range(0.0, 1.0));
  plan->add_flag(
      "--swing", arguments->swing,
      "Also consider chunks that swing to the GPU for their update (the trainer does not "
      "run such plans yet)");
}

}  // namespace

Command add_plan(CLI::App& app) {
  const auto arguments = std::make_shared<PlanArguments>();
  CLI::App* const plan = app.add_subcommand(
      "plan", "How a model would be trained on a machine: chunks, rCache, homes, predicted step");
  add_model_flags(plan, arguments.get());
  add_machine_flags(plan, arguments.get());
  add_choice_flags(plan, arguments.get());
  plan->add_flag("--json", arguments->json, "Print one JSON object");
  plan->add_option("--output", arguments->output, "Write the plan, for train_gpt2 --plan");
  plan->add_option("--trace", arguments->trace, "Write the predicted step as a Chrome trace");
  plan->add_option("--memory-picture", arguments->memory_picture,
                   "Write a GPU's memory over the step as an SVG");
  return {plan, [arguments, plan, &app] {
            arguments->tokens_given =
                plan->get_option("--batch")->count() + plan->get_option("--seq")->count() > 0;
            const Status result = plan_command(*arguments);
            return result.ok() ? 0 : report_failure(app, result);
          }};
}

}  // namespace elixir::ctl
