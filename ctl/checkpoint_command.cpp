// elixirctl checkpoint: what there is, whether it is whole, what one takes, and torch's files.

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "base/compute_type_names.h"
#include "base/printable.h"
#include "base/processors.h"
#include "ctl/checkpoint_checks.h"
#include "ctl/checkpoint_estimate.h"
#include "ctl/command.h"
#include "ctl/helper_program.h"
#include "ctl/model_source.h"
#include "planner/estimate/estimate.h"

namespace elixir::ctl {
namespace {

using Run = std::function<int()>;

struct Subcommand {
  CLI::App* app;
  Run run;
};

constexpr uint32_t kMostThreads = 64;

int ended(const CLI::App& app, const Status& status) {
  return status.ok() ? 0 : report_failure(app, status);
}

struct ListArguments {
  std::string path;
  bool json = false;
  uint32_t threads = 0;
};

// `read`: all of each is read.
Result<bool> show(const ListArguments& arguments, bool read) {
  Result<std::vector<checkpoints::ListedCheckpoint>> all = find_checkpoints(arguments.path);
  if (!all.ok()) return all.status();
  bool valid = true;
  const uint32_t threads =
      arguments.threads != 0 ? arguments.threads : std::clamp(parallel_threads(), 1u, 8u);
  for (checkpoints::ListedCheckpoint& one : *all) {
    if (read) ELIXIR_RETURN_IF_ERROR(verify_checkpoint(one, threads));
    valid = valid && one.valid;
  }
  if (arguments.json) {
    std::cout << checkpoints_json(*all) << "\n";
  } else if (all->empty()) {
    std::cout << printable("no checkpoints (step-NNNNNNNNN) in " + arguments.path) << "\n";
  } else {
    std::cout << checkpoints_text(*all, read);
  }
  // Whoever asks whether a checkpoint is whole is not told so of none.
  return valid && !(read && all->empty());
}

Subcommand add_list(const CLI::App& app, CLI::App& checkpoint) {
  const auto arguments = std::make_shared<ListArguments>();
  CLI::App* const command = checkpoint.add_subcommand(
      "list", "The checkpoints of a folder; sizes are compared, no tensor is read");
  command
      ->add_option("folder", arguments->path, "As elixir-train's --checkpoints, or one checkpoint")
      ->required();
  command->add_flag("--json", arguments->json, "Print [{path, step, valid, bytes, why}]");
  return {command,
          [&app, arguments] { return ended(app, show(*arguments, /*read=*/false).status()); }};
}

Subcommand add_verify(const CLI::App& app, CLI::App& checkpoint) {
  const auto arguments = std::make_shared<ListArguments>();
  CLI::App* const command = checkpoint.add_subcommand(
      "verify", "Reads all of a checkpoint, or of each of a folder; exit code 4: one is not valid");
  command->add_option("folder", arguments->path, "A checkpoint, or a folder of them")->required();
  command->add_flag("--json", arguments->json, "Print [{path, step, valid, bytes, why}]");
  command
      ->add_option("--threads", arguments->threads,
                   "Threads that read (0: one per core, at most 8)")
      ->check(CLI::Range(0u, kMostThreads));
  return {command, [&app, arguments] {
            const Result<bool> valid = show(*arguments, /*read=*/true);
            if (!valid.ok()) return report_failure(app, valid.status());
            return *valid ? 0 : static_cast<int>(Code::kBadInput);
          }};
}

struct EstimateArguments {
  ModelSource source;
  double disk_gb_s = 0, step_s = 0;
  std::optional<uint64_t> shadow_bytes;
  bool json = false;
};

Status estimate(const EstimateArguments& arguments) {
  const Result<SizedModel> model = find_source(arguments.source);
  if (!model.ok()) return model.status();
  if (model->params > planner::kMaxParams) {
    return error(Code::kInvalidArgument, "more than {} parameters", planner::kMaxParams);
  }
  const SaveRequest request{.params = model->params,
                            .type = arguments.source.model.dtype,
                            .disk_bytes_per_s = arguments.disk_gb_s * 1e9,
                            .shadow_bytes = arguments.shadow_bytes,
                            .step_s = arguments.step_s};
  const SaveEstimate found = estimate_save(request);
  std::cout << (arguments.json ? estimate_json(request, found) + "\n"
                               : estimate_text(request, found));
  return Status();
}

Subcommand add_estimate_save(const CLI::App& app, CLI::App& checkpoint) {
  const auto arguments = std::make_shared<EstimateArguments>();
  CLI::App* const command = checkpoint.add_subcommand(
      "estimate", "Bytes of a checkpoint, seconds to write it, and how long training would wait");
  add_source(*command, arguments->source);
  add_choice(*command, "--dtype", arguments->source.model.dtype, kComputeTypeNames,
             "The type that is trained in: bf16, fp16, fp32");
  command
      ->add_option("--disk-gb-s", arguments->disk_gb_s,
                   "GB (1e9 bytes) per second that the disk writes")
      ->check(CLI::Range(0.001, 1e6));
  command->add_option("--step-s", arguments->step_s, "Seconds of a step (0: not known)")
      ->check(CLI::Range(0.0, 1e6));
  command
      ->add_option_function<std::string>(
          "--shadow",
          [arguments](const std::string& text) {
            const Result<uint64_t> bytes = parse_bytes(text);
            if (!bytes.ok()) throw CLI::ValidationError("--shadow", bytes.status().message());
            arguments->shadow_bytes = *bytes;
          },
          "Host memory for copies while it is written, as 4GiB (default: a quarter of the bytes)")
      ->type_name("BYTES");
  command->add_flag("--json", arguments->json, "Print one JSON object");
  return {command, [&app, arguments] { return ended(app, estimate(*arguments)); }};
}

// elixir-convert prints what is wrong itself, and how far it is.
int convert(const CLI::App& app, std::vector<std::string> arguments) {
  const Result<HelperRun> run =
      run_helper_program("elixir-convert", std::move(arguments), "converts checkpoints");
  return run.ok() ? run->exit_code : report_failure(app, run.status());
}

// Flags of elixir-convert that are given on as they are: "--flag=value", where there is one.
class Forwarded {
 public:
  CLI::Option* add(CLI::App& command, const char* flag, const char* help) {
    auto& [name, value] = flags_.emplace_back(flag, "");
    return command.add_option(flag, value, help);
  }
  bool given(std::initializer_list<const char*> any) const {
    return std::any_of(flags_.begin(), flags_.end(), [&](const auto& flag) {
      return !flag.second.empty() && std::find(any.begin(), any.end(), flag.first) != any.end();
    });
  }
  void append_to(std::vector<std::string>& argv) const {
    for (const auto& [name, value] : flags_) {
      if (!value.empty()) argv.push_back(fmt::format("{}={}", name, value));
    }
  }

 private:
  std::deque<std::pair<std::string, std::string>> flags_;  // which stay where they are
};

Subcommand add_export(const CLI::App& app, CLI::App& checkpoint) {
  struct Arguments {
    std::string checkpoint;
    Forwarded flags;
  };
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* const command = checkpoint.add_subcommand(
      "export",
      "Writes Adam's states as torch.optim.AdamW.state_dict() has them, for torch.load(), and FP32 "
      "weights. Files are mapped, so no memory is needed for them");
  command->add_option("checkpoint", arguments->checkpoint, "A checkpoint")->required();
  Forwarded& flags = arguments->flags;
  flags.add(*command, "--torch", "Write {state, param_groups, param_names} to this new file");
  flags.add(*command, "--masters",
            "Write the parameters, in FP32 as Adam keeps them, to this new .safetensors file");
  flags.add(*command, "--names",
            "Parameters in the order of the optimizer, a name a line (default: the model's order)");
  return {command, [&app, arguments] {
            if (!arguments->flags.given({"--torch", "--masters"})) {
              return report_failure(app, error(Code::kInvalidArgument,
                                               "nothing to write: give --torch FILE, --masters "
                                               "FILE or both"));
            }
            std::vector<std::string> argv = {"export"};
            arguments->flags.append_to(argv);
            argv.insert(argv.end(), {"--", arguments->checkpoint});
            return convert(app, std::move(argv));
          }};
}

Subcommand add_import(const CLI::App& app, CLI::App& checkpoint) {
  struct Arguments {
    Forwarded flags;
    ComputeType type = ComputeType::kFp32;
  };
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* const command = checkpoint.add_subcommand(
      "import",
      "Makes a checkpoint of a Hugging Face folder and the state_dict() of torch's AdamW, as "
      "torch.save() wrote it: by number, by name, or flattened. One tensor is in memory at a time");
  Forwarded& flags = arguments->flags;
  flags.add(*command, "--torch", "The optimizer's file")->required();
  flags.add(*command, "--model", "The model's folder")->required();
  flags.add(*command, "--output", "The checkpoint; must not be there yet")->required();
  flags.add(*command, "--names",
            "Parameters in the order in which the optimizer got them, a name a line (default: the "
            "names in the file, or the order of a known model)");
  flags.add(*command, "--step", "Steps made so far (default: Adam's count)")
      ->check(CLI::Range(uint64_t{0}, uint64_t{1'000'000'000'000'000}));
  add_choice(*command, "--dtype", arguments->type, kComputeTypeNames,
             "The type of the training that continues: bf16, fp16, fp32");
  return {command, [&app, arguments] {
            std::vector<std::string> argv = {"import"};
            arguments->flags.append_to(argv);
            argv.push_back(fmt::format("--dtype={}", compute_type_name(arguments->type)));
            return convert(app, std::move(argv));
          }};
}

}  // namespace

Command add_checkpoint(CLI::App& app) {
  CLI::App* const command = app.add_subcommand(
      "checkpoint", "Checkpoints: list, verify, estimate, and torch's files: export, import");
  command->require_subcommand(0, 1);
  const std::vector<Subcommand> all = {add_list(app, *command), add_verify(app, *command),
                                       add_estimate_save(app, *command), add_export(app, *command),
                                       add_import(app, *command)};
  return {command, [&app, all] {
            for (const Subcommand& one : all) {
              if (one.app->parsed()) return one.run();
            }
            return report_failure(
                app, error(Code::kInvalidArgument,
                           "no command; try 'elixirctl checkpoint list FOLDER' (elixirctl "
                           "checkpoint --help lists all)"));
          }};
}

}  // namespace elixir::ctl
