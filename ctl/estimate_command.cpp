// elixirctl estimate: whether a model fits, without a plan.

#include <algorithm>
#include <iostream>
#include <memory>
#include <string>

#include "base/compute_type_names.h"
#include "base/printable.h"
#include "base/units.h"
#include "ctl/command.h"
#include "ctl/model_profile.h"
#include "ctl/model_source.h"
#include "ctl/search_progress.h"
#include "planner/estimate/report.h"

namespace elixir::ctl {
namespace {

constexpr int64_t kDefaultGpusPerNode = 8;

struct EstimateArguments {
  ModelSource source;  // of a batch of 0: activations do not count
  int64_t gpus = 1;
  int64_t gpus_per_node = 0;  // 0: the fewer of gpus and kDefaultGpusPerNode
  std::optional<uint64_t> gpu_memory, host_memory;
  uint64_t chunk_numel = 0;
  bool zero = false;
  bool json = false;
};

Result<planner::EstimateRequest> request_of(const EstimateArguments& arguments,
                                            const SizedModel& source) {
  const int64_t node = arguments.gpus_per_node != 0
                           ? arguments.gpus_per_node
                           : std::clamp(arguments.gpus, int64_t{1}, kDefaultGpusPerNode);
  using Flag = std::pair<const char*, int64_t>;  // checked before they are narrowed
  for (const auto& [flag, value] :
       {Flag{"--gpus", arguments.gpus}, Flag{"--gpus-per-node", node}}) {
    if (value < 1 || value > planner::kMostGpus) {
      return error(Code::kInvalidArgument, "{} {}: it must be from 1 to {}", flag, value,
                   planner::kMostGpus);
    }
  }
  planner::EstimateRequest request{.params = source.params,
                                   .largest_param = source.largest_param,
                                   .gpus = static_cast<uint32_t>(arguments.gpus),
                                   .gpus_per_node = static_cast<uint32_t>(node),
                                   .type = arguments.source.model.dtype,
                                   .host_memory_bytes = arguments.host_memory,
                                   .gpu_memory_bytes = arguments.gpu_memory};
  ELIXIR_RETURN_IF_ERROR(planner::check_request(request));
  return request;
}

Status check_step(const EstimateArguments& arguments, const SizedModel& source) {
  const planner::ModelRequest& step = arguments.source.model;
  if (step.batch == 0 && step.seq == 0 && arguments.chunk_numel == 0) return Status();
  if (source.context == 0) {
    return error(Code::kInvalidArgument,
                 "--batch, --seq and --chunk-numel need a model that can be profiled: --model or "
                 "--config");
  }
  if (step.batch < 0 || step.batch > static_cast<int64_t>(planner::kMaxBatch)) {
    return error(Code::kInvalidArgument, "--batch {}: it must be from 1 to {}", step.batch,
                 planner::kMaxBatch);
  }
  if (step.seq < 0 || step.seq > source.context) {
    return error(Code::kInvalidArgument, "--seq {}: it must be from 1 to {}, the longest of {}",
                 step.seq, source.context, source.name);
  }
  return Status();
}

planner::BatchProfiles profiles_of(const planner::ModelRequest& step) {
  return planner::BatchProfiles([step, progress = SearchProgress()](uint64_t batch) {
    progress.looking_at("batch", batch);
    ModelProfileRequest request{step};
    request.batch = static_cast<int64_t>(batch);
    return profile_of_model(request);
  });
}

Status estimate(const EstimateArguments& arguments) {
  const Result<SizedModel> source = find_source(arguments.source);
  if (!source.ok()) return source.status();
  say_unused_fields(arguments.source.model.config_path);
  const Result<planner::EstimateRequest> request = request_of(arguments, *source);
  if (!request.ok()) return request.status();
  ELIXIR_RETURN_IF_ERROR(check_step(arguments, *source));
  planner::ReportOptions options{.name = source->name,
                                 .step = arguments.source.model,
                                 .chunk_numel = arguments.chunk_numel,
                                 .zero = arguments.zero,
                                 .zero_shape = source->shape,
                                 .quantised = source->quantised};
  if (options.step.seq == 0) {
    options.step.seq = std::clamp<int64_t>(source->context, 1, planner::kDefaultSeq);
  }
  planner::BatchProfiles profiles = profiles_of(options.step);
  if (source->context > 0) {
    const Result<const planner::ModelProfile*> first = profiles.at(options.profiled_batch());
    if (first.ok()) {
      options.profiles = &profiles;
    } else {
      options.step.batch = 0;
      std::cerr << fmt::format(
          "elixirctl: the least of Elixir, activations and the largest batch are left out: {}\n",
          first.status().message());
    }
  }
  const Result<planner::EstimateReport> report = planner::make_report(*request, options);
  if (!report.ok()) return report.status();
  std::cout << (arguments.json ? to_json(*report) + "\n"
                               : printable(to_text(*report), /*lines=*/true));
  return Status();
}

}  // namespace

Command add_estimate(CLI::App& app) {
  const auto arguments = std::make_shared<EstimateArguments>();
  CLI::App* const command = app.add_subcommand(
      "estimate", "Bytes a GPU and a host need, for Elixir and for the ZeRO strategies");
  add_source(*command, arguments->source);
  planner::ModelRequest& model = arguments->source.model;
  command->add_option("--gpus", arguments->gpus, "GPUs that share the model");
  command->add_option("--gpus-per-node", arguments->gpus_per_node,
                      "GPUs in each node (0: all of them, at most 8)");
  add_bytes(*command, "--gpu-memory", arguments->gpu_memory,
            "Memory of one GPU, for example 40GiB: says whether it fits");
  add_bytes(*command, "--host-memory", arguments->host_memory,
            "Host memory of a node, for example 500GiB");
  add_choice(
      *command, "--dtype", model.dtype, kComputeTypeNames,
      "Type of parameters and gradients: bf16, fp16, fp32 (default: that of --config, else bf16)");
  command->add_option("--batch", model.batch,
                      "Sequences of a step and GPU, whose activations count (0: none)");
  command->add_option("--seq", model.seq,
                      "Tokens of a sequence (0: the model's longest, at most 1024)");
  command
      ->add_option("--chunk-numel", arguments->chunk_numel,
                   "Elements of Elixir's chunks; 0: with which it takes least of a GPU")
      ->check(CLI::Range(int64_t{0}, static_cast<int64_t>(planner::kMaxParameterNumel)));
  command->add_flag("--checkpoint-activations,!--no-checkpoint-activations",
                    model.checkpoint_activations,
                    "Activations of a block are computed again in backward (default)");
  command->add_flag("--zero", arguments->zero,
                    "Also what ZeRO's own formulas say: the largest models, and activations with "
                    "P_a and P_a+cpu");
  command->add_flag("--json", arguments->json, "Print one JSON object");
  return {command, [arguments, command, &app] {
            take_stored_type(*command, arguments->source.model);
            const Status result = estimate(*arguments);
            return result.ok() ? 0 : report_failure(app, result);
          }};
}

}  // namespace elixir::ctl
