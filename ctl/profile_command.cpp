// elixirctl profile: what one step of a known model does, before it runs.

#include <fmt/core.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/compute_type_names.h"
#include "base/printable.h"
#include "base/text_file.h"
#include "base/units.h"
#include "ctl/command.h"
#include "ctl/model_profile.h"
#include "ctl/model_source.h"

namespace elixir::ctl {
namespace {

struct ProfileArguments {
  ModelProfileRequest model;
  bool no_checkpoint_activations = false;
  std::string output;
  bool json = false;
};

uint64_t parameters_of_largest_region(const planner::ModelProfile& profile) {
  uint64_t largest = 0;
  for (const planner::OperatorRange& region : profile.checkpoint_regions) {
    std::vector<bool> seen(profile.params.size(), false);
    uint64_t numel = 0;
    for (uint32_t step = region.first; step <= region.last; ++step) {
      for (const uint32_t parameter : profile.steps[step]) {
        if (!seen[parameter]) numel += profile.params[parameter].numel;
        seen[parameter] = true;
      }
    }
    largest = std::max(largest, numel);
  }
  return largest;
}

// Eleven lines for people.
std::string summary(const planner::ModelProfile& profile) {
  const auto largest =
      std::max_element(profile.params.begin(), profile.params.end(),
                       [](const auto& a, const auto& b) { return a.numel < b.numel; });
  const double flops = std::accumulate(profile.step_flops.begin(), profile.step_flops.end(), 0.0);
  const uint64_t shared = static_cast<uint64_t>(
      std::count_if(profile.params.begin(), profile.params.end(),
                    [](const planner::ProfiledParameter& param) { return param.shared; }));
  const uint32_t backward = profile.backward_first();
  std::string text = fmt::format("model        {}\n", profile.model);
  text += fmt::format("parameters   {} in {} tensors, {} shared\n", profile.total_numel(),
                      profile.params.size(), shared);
  text += fmt::format("largest      {} of {}\n", largest->numel, largest->name);
  text += fmt::format("in {} bytes   {}\n", profile.dtype_bytes(),
                      format_bytes(profile.total_numel() * profile.dtype_bytes()));
  text += fmt::format("operators    {} that read parameters forward, {} backward\n", backward,
                      profile.steps.size() - backward);
  text += fmt::format("checkpoints  {} regions forward and backward, {} parameters at most\n",
                      profile.checkpoint_regions.size(), parameters_of_largest_region(profile));
  text += fmt::format("tokens       {} a step\n", profile.tokens);
  text += fmt::format("work         {:.3g} TFLOP a step in matrix products\n", flops / 1e12);
  planner::OperatorWork all;
  for (const planner::OperatorWork& work : profile.step_work) all.add(work);
  text += fmt::format("other work   {:.3g} GB a step read and written, {} kernels in all\n",
                      all.bytes / 1e9, all.kernels);
  text += fmt::format("activations  {} at their peak{}\n", format_bytes(profile.activation_bytes),
                      profile.measured ? " (measured)" : "");
  return text +
         fmt::format("buffers      {} with the inputs\n", format_bytes(profile.buffer_bytes));
}

Status profile(const ProfileArguments& arguments) {
  ModelProfileRequest request = arguments.model;
  request.checkpoint_activations = !arguments.no_checkpoint_activations;
  if (const auto config = planner::config_of(request); !config.ok()) return config.status();
  say_unused_fields(request.config_path);
  if (arguments.json || !arguments.output.empty()) {
    const Result<std::string> text = profile_json_of_model(request);
    if (!text.ok()) return text.status();
    if (!arguments.output.empty()) return write_text_file(arguments.output, *text);
    std::cout << *text;
    return {};
  }
  const Result<planner::ModelProfile> found = profile_of_model(request);
  if (!found.ok()) return found.status();
  std::cout << printable(summary(*found), /*lines=*/true);
  return {};
}

}  // namespace

Command add_profile(CLI::App& app) {
  CLI::App* const command = app.add_subcommand(
      "profile", "Shows what one step of a model does: operators, parameters, peak of activations");
  const auto arguments = std::make_shared<ProfileArguments>();
  ModelProfileRequest& model = arguments->model;
  command->add_option("--model", model.model, "A known model, as gpt2-10b or opt-175b");
  command->add_option("--config", model.config_path, "A Hugging Face config.json");
  command->add_option("--batch", model.batch, "Sequences a step")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  command->add_option("--seq", model.seq, "Tokens of each (default: the longest, at most 1024)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  command->add_option("--layers", model.layers, "In place of the model's own; 0: its own")
      ->check(CLI::Range(int64_t{0}, planner::kMaxLayers));
  command->add_option("--freeze", model.freeze,
                      "Parameters whose names this regular expression finds are not trained");
  add_choice(
      *command, "--dtype", model.dtype, kComputeTypeNames,
      "bf16, fp16 or fp32: parameters and activations (default: that of --config, else bf16)");
  command->add_flag("--no-checkpoint-activations", arguments->no_checkpoint_activations,
                    "Keep all activations for backward instead of each block's input");
  command->add_option("--output", arguments->output, "Write the profile, JSON, to this file");
  command->add_flag("--json", arguments->json, "Print the profile, for plan --profile");
  return {command, [&app, command, arguments] {
            take_stored_type(*command, arguments->model);
            const Status status = profile(*arguments);
            return status.ok() ? 0 : report_failure(app, status);
          }};
}

}  // namespace elixir::ctl
