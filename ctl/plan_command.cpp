// elixirctl plan: how a model would be trained on a machine.

#include <fmt/format.h>

#include <cmath>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "base/printable.h"
#include "base/text_file.h"
#include "base/units.h"
#include "ctl/command.h"
#include "ctl/model_source.h"
#include "ctl/plan_input.h"
#include "ctl/plan_largest.h"
#include "planner/plan/plan_json.h"
#include "planner/report/comparison.h"
#include "planner/report/memory_picture.h"
#include "planner/report/plan_text.h"
#include "planner/report/predicted_trace.h"
#include "planner/report/time_picture.h"
#include "planner/report/what_if.h"
#include "planner/search/least_changes.h"
#include "shm/shape.h"

namespace elixir::ctl {
namespace {

struct PlanOutputs {
  bool json = false, compare = false, what_if = false;
  std::string largest;                                      // "batch", "seq", "layers"; "": none
  double tokens = 0, price_per_hour = 0;                    // of the whole run; of a GPU
  std::string output, trace, memory_picture, time_picture;  // files to write
};

Status write_reports(const PlanOutputs& outputs, const planner::PlannedStep& planned,
                     const planner::ModelProfile& profile, const planner::Machine& machine,
                     const planner::PlanRequest& request) {
  if (!outputs.output.empty()) {
    ELIXIR_RETURN_IF_ERROR(write_text_file(outputs.output, planner::to_json(planned.plan) + "\n"));
  }
  if (!outputs.trace.empty()) {
    std::vector<planner::StepSpan> spans;
    const Result<planner::StepTimes> times = planner::simulate_step(planned.step, &spans);
    if (!times.ok()) return times.status();
    ELIXIR_RETURN_IF_ERROR(write_text_file(outputs.trace, planner::predicted_trace(spans)));
  }
  if (!outputs.time_picture.empty()) {
    const auto times = planner::times_over_memory(profile, machine, request);
    if (!times.ok()) return times.status();
    ELIXIR_RETURN_IF_ERROR(write_text_file(
        outputs.time_picture,
        planner::time_picture(*times, planned.plan.model, machine.gpu_memory_bytes)));
  }
  if (outputs.memory_picture.empty()) return Status();
  return write_text_file(outputs.memory_picture,
                         planner::memory_picture(planned.plan, profile, machine.gpu_memory_bytes));
}

Status check_outputs(const PlanArguments& arguments, const PlanOutputs& outputs) {
  std::set<std::string> files;
  for (const std::string& file :
       {outputs.output, outputs.trace, outputs.memory_picture, outputs.time_picture}) {
    if (file.empty() || files.insert(file).second) continue;
    return error(Code::kInvalidArgument, "two files are to be written to {}", file);
  }
  if (std::isnan(outputs.tokens) || std::isnan(outputs.price_per_hour) ||
      std::isnan(arguments.request.layout.gpu_state_share.value_or(0)) ||
      std::isnan(arguments.overrides.internode_gb_s.value_or(0)) ||
      std::isnan(arguments.overrides.g2g_gb_s.value_or(0)) ||
      std::isnan(arguments.overrides.link_gb_s.value_or(0)) ||
      std::isnan(arguments.overrides.cpu_gparam_s.value_or(0))) {
    return error(Code::kInvalidArgument, "nan is not a number of tokens, price, share or rate");
  }
  if (outputs.price_per_hour > 0 && outputs.tokens == 0) {
    return error(Code::kInvalidArgument, "--price-per-hour is of a run: give --tokens, too");
  }
  const bool of_one_plan = !outputs.largest.empty() || outputs.tokens > 0 ||
                           !outputs.output.empty() || !outputs.trace.empty() ||
                           !outputs.memory_picture.empty() || !outputs.time_picture.empty();
  if (outputs.compare && outputs.what_if) {
    return error(Code::kInvalidArgument, "--compare and --what-if: give one of them");
  }
  if (outputs.what_if && of_one_plan) {
    return error(Code::kInvalidArgument,
                 "--what-if makes a plan for each change: leave out the flags of one plan "
                 "(--largest, --tokens and files to write)");
  }
  if (outputs.compare && (of_one_plan || arguments.request.policy != planner::Policy::kElixir ||
                          arguments.request.layout != LayoutOptions())) {
    return error(Code::kInvalidArgument,
                 "--compare makes a plan for each strategy: leave out the flags of one plan "
                 "(--policy, --exchange, --chunk-numel, --rcache-blocks, --long-blocks, "
                 "--gpu-state-share, --spare-slots, --swing-stride, --largest, --tokens and files "
                 "to write)");
  }
  return Status();
}

// What only the command line knows: that a flag was given, whatever its value.
Status check_given(const CLI::App& plan, const PlanArguments& arguments,
                   const PlanOutputs& outputs) {
  const auto given = [&plan](const std::string& flag) {
    return plan.get_option(flag)->count() > 0;
  };
  if (!outputs.largest.empty() && given("--" + outputs.largest)) {
    return error(Code::kInvalidArgument, "--{0} is what --largest {0} looks for: leave it out",
                 outputs.largest);
  }
  if (given("--freeze") && arguments.model.freeze.empty()) {
    return error(Code::kInvalidArgument, "--freeze: an expression is needed");
  }
  return Status();
}

// A profile in a file has checkpointed regions, or none.
void take_activations(PlanArguments* arguments) {
  if (!arguments->activations) return;
  arguments->request.regions = *arguments->activations;
  if (!arguments->profile.empty()) return;
  arguments->model.checkpoint_activations =
      arguments->activations->mode != Activations::Mode::kKeep;
}

Status compare(const PlanOutputs& outputs, const planner::ModelProfile& profile,
               const planner::Machine& machine, const planner::PlanRequest& request) {
  const auto rows = planner::compare_strategies(profile, machine, request);
  if (!rows.ok()) return rows.status();
  std::cout << (outputs.json ? planner::to_json(*rows) + "\n"
                             : printable(planner::to_text(*rows), /*lines=*/true));
  return Status();
}

// The step with half and twice as many sequences, or tokens in each, where there are such; none
// for a profile in a file, which is of one step.
Result<std::vector<std::pair<std::string, planner::ModelProfile>>> other_steps(
    const PlanArguments& arguments) {
  std::vector<std::pair<std::string, planner::ModelProfile>> steps;
  if (!arguments.profile.empty()) return steps;
  const Result<planner::TransformerConfig> config = planner::config_of(arguments.model);
  if (!config.ok()) return config.status();
  const int64_t batch = arguments.model.batch;
  const int64_t seq = arguments.model.seq != 0 ? arguments.model.seq
                                               : std::min(planner::kDefaultSeq, config->context);
  const auto add = [&](std::string change, int64_t sequences, int64_t tokens) -> Status {
    if (sequences < 1 || tokens < 1 || tokens > config->context) return Status();
    ModelProfileRequest model = arguments.model;
    model.batch = sequences;
    model.seq = tokens;
    Result<planner::ModelProfile> profile = profile_of(arguments, model);
    if (!profile.ok()) return profile.status();
    steps.emplace_back(std::move(change), std::move(*profile));
    return Status();
  };
  for (const int64_t other : {batch / 2, batch * 2}) {
    ELIXIR_RETURN_IF_ERROR(add(fmt::format("--batch {}", other), other, seq));
  }
  for (const int64_t other : {seq / 2, seq * 2}) {
    ELIXIR_RETURN_IF_ERROR(add(fmt::format("--seq {}", other), batch, other));
  }
  return steps;
}

Status tell_what_if(const PlanArguments& arguments, const PlanOutputs& outputs,
                    const planner::ModelProfile& profile, const planner::Machine& machine,
                    const planner::PlanRequest& request) {
  std::vector<planner::WhatIfCase> cases = planner::machine_changes(profile, machine);
  const auto steps = other_steps(arguments);
  if (!steps.ok()) return steps.status();
  for (const auto& [change, other] : *steps) cases.push_back({change, machine, &other});
  const auto rows = planner::what_if(cases, request);
  if (!rows.ok()) return rows.status();
  std::cout << (outputs.json ? planner::to_json(*rows) + "\n" : planner::to_text(*rows));
  return Status();
}

// What was asked for and cannot be had as it was said.
void tell_differences(const PlanArguments& arguments, const planner::Plan& plan) {
  const LayoutOptions& asked = arguments.request.layout;
  if (asked.rcache_blocks != 0 && asked.rcache_blocks != plan.chosen.rcache_blocks) {
    std::cerr << fmt::format("elixirctl: --rcache-blocks {}: the plan has {}, {}\n",
                             asked.rcache_blocks, plan.chosen.rcache_blocks,
                             asked.rcache_blocks < plan.chosen.rcache_blocks
                                 ? "since operators need as many at once"
                                 : "one for each chunk that is gathered");
  }
  if (asked.long_blocks != 0 && asked.long_blocks != plan.chosen.long_blocks) {
    std::cerr << fmt::format("elixirctl: --long-blocks {}: the plan has {}, {}\n",
                             asked.long_blocks, plan.chosen.long_blocks,
                             asked.long_blocks < plan.chosen.long_blocks
                                 ? "since operators need as many at once"
                                 : "one for each parameter longer than a chunk that is gathered");
  }
  if (asked.spare_slots && *asked.spare_slots != plan.chosen.spare_slots) {
    std::cerr << fmt::format(
        "elixirctl: --spare-slots {}: the plan has {}, one for each chunk that the CPU updates\n",
        *asked.spare_slots, plan.chosen.spare_slots);
  }
  if (asked.swing_stride && *asked.swing_stride != plan.chosen.stride) {
    std::cerr << fmt::format("elixirctl: --swing-stride {}: the plan has {}\n", *asked.swing_stride,
                             planner::swing_text(plan));
  }
  if (plan.gpus == 1 && asked.exchange) {
    std::cerr << fmt::format(
        "elixirctl: --exchange {}: one GPU has no other GPU to exchange with\n",
        shm::exchange_name(*asked.exchange));
  }
}

Status plan_command(const PlanArguments& arguments, const PlanOutputs& outputs,
                    const planner::Machine& machine) {
  say_unused_fields(arguments.model.config_path);
  const planner::PlanRequest request = request_of(arguments);
  LargestPlan plan;
  if (!outputs.largest.empty()) {
    Result<LargestPlan> largest = largest_plan(arguments, outputs.largest, machine, request);
    if (!largest.ok()) return largest.status();
    plan = std::move(*largest);
  } else {
    Result<planner::ModelProfile> profile = profile_of(arguments);
    if (!profile.ok()) return profile.status();
    if (outputs.compare) return compare(outputs, *profile, machine, request);
    if (outputs.what_if) return tell_what_if(arguments, outputs, *profile, machine, request);
    Result<planner::PlannedStep> planned = planner::make_plan(*profile, machine, request);
    if (!planned.ok()) {
      return planner::with_least_changes(planned.status(), *profile, machine, request);
    }
    plan.profile = std::move(*profile);
    plan.planned = std::move(*planned);
  }
  tell_differences(arguments, plan.planned.plan);
  ELIXIR_RETURN_IF_ERROR(write_reports(outputs, plan.planned, plan.profile, machine, request));
  planner::PlanExtras extras;
  extras.largest = outputs.largest;
  extras.largest_value = plan.value;
  extras.largest_on_device = plan.on_device;
  extras.tokens = outputs.tokens;
  extras.price_per_gpu_hour = outputs.price_per_hour;
  std::cout << (outputs.json
                    ? planner::to_json(plan.planned.plan, extras) + "\n"
                    : printable(planner::plan_text(plan.planned.plan, extras), /*lines=*/true));
  return Status();
}

void add_output_flags(CLI::App* plan, PlanOutputs* outputs) {
  constexpr double kMostTokens = 1e18, kMostPrice = 1e6;
  plan->add_flag("--json", outputs->json, "Print one JSON object");
  plan->add_flag("--compare", outputs->compare,
                 "A table: Elixir's exchanges beside DDP, ZeRO and ZeRO with offload");
  plan->add_flag("--what-if", outputs->what_if,
                 "A table: what each change of the machine or the step would bring");
  plan->add_option(
          "--largest", outputs->largest,
          "The most sequences, tokens of one sequence (or of each of --batch) or layers with "
          "which there is a plan")
      ->check(CLI::IsMember({"batch", "seq", "layers"}));
  plan->add_option_function<std::string>(
      "--tokens",
      [outputs](const std::string& text) {
        const std::optional<double> tokens = parse_large_count(text, 1, kMostTokens);
        if (!tokens) {
          throw CLI::ValidationError("--tokens", "must be from 1 to 1e18, as 300e9 or 300B");
        }
        outputs->tokens = *tokens;
      },
      "How long training on so many takes (300B)");
  plan->add_option("--price-per-hour", outputs->price_per_hour,
                   "Price of one GPU; the plan then says what training costs")
      ->check(CLI::Range(0.0, kMostPrice));
  plan->add_option("--output", outputs->output, "Write the plan, for elixir-train --plan");
  plan->add_option(
      "--trace", outputs->trace,
      fmt::format("Write the predicted step as a Chrome trace; of its passes {} at most",
                  planner::kMostMicroSteps));
  plan->add_option("--memory-picture", outputs->memory_picture,
                   "Write a GPU's memory over the step as an SVG");
  plan->add_option("--time-picture", outputs->time_picture,
                   "Write the step's time over a GPU's memory as an SVG");
}

}  // namespace

Command add_plan(CLI::App& app) {
  const auto arguments = std::make_shared<PlanArguments>();
  const auto outputs = std::make_shared<PlanOutputs>();
  CLI::App* const plan = app.add_subcommand("plan",
                                            "How a model would be trained on a machine: chunks, "
                                            "rCache, where states live, predicted step");
  add_model_flags(plan, arguments.get());
  add_machine_flags(plan, arguments.get());
  add_choice_flags(plan, arguments.get());
  add_output_flags(plan, outputs.get());
  return {plan, [arguments, outputs, plan, &app] {
            arguments->tokens_given =
                plan->get_option("--batch")->count() + plan->get_option("--seq")->count() > 0;
            // The longest sequence is asked of one, unless somebody says of how many.
            const bool sequences_given = plan->get_option("--batch")->count() > 0;
            if (outputs->largest == "seq" && !sequences_given) arguments->model.batch = 1;
            arguments->dtype_given = plan->get_option("--dtype")->count() > 0;
            take_stored_type(*plan, arguments->model);
            take_activations(arguments.get());
            Problems problems;  // before a model is profiled, which takes a moment
            problems.add(check_given(*plan, *arguments, *outputs));
            problems.add(check_source(*arguments));
            problems.add(check_outputs(*arguments, *outputs));
            const Result<planner::Machine> machine = machine_of(*arguments);
            problems.add(machine.status());
            if (!problems.empty()) return report_failures(app, problems);
            const Status result = plan_command(*arguments, *outputs, *machine);
            return result.ok() ? 0 : report_failure(app, result);
          }};
}

}  // namespace elixir::ctl
