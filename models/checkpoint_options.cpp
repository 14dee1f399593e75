#include "models/checkpoint_options.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/cli.h"
#include "base/units.h"

namespace elixir {
namespace {

// As add_bytes(), but 0 means what it says.
void add_shadow(CLI::App& app, std::optional<uint64_t>& bytes) {
  app.add_option_function<std::string>(
         "--shadow",
         [&bytes](const std::string& text) {
           const Result<uint64_t> parsed = text == "0" ? Result<uint64_t>(0) : parse_bytes(text);
           if (!parsed.ok()) throw CLI::ValidationError("--shadow", parsed.status().message());
           bytes = *parsed;
         },
         "Host memory for copies while a checkpoint is written; 0: updates wait for the disk "
         "(default: elixird's choice)")
      ->type_name("BYTES");
}

// An unset variable of a script would mean something else than it says.
std::string not_empty(const std::string& text) {
  return text.empty() ? "it is empty: give a folder, or leave the flag out" : "";
}

Status needs_folder(const char* flag) {
  return error(Code::kInvalidArgument,
               "{} needs --checkpoints FOLDER, where checkpoints are written", flag);
}

// In the place in which checkpoints are kept it would be in the way of a save, or go for one.
Status check_export(const CheckpointOptions& options) {
  namespace fs = std::filesystem;
  if (options.export_folder.empty() || options.folder.empty()) return {};
  const auto whole = [](const std::string& path) {
    std::error_code failure;
    const fs::path found = fs::weakly_canonical(fs::absolute(path, failure) / "", failure);
    return failure ? fs::path(path) : found;
  };
  const fs::path inner = whole(options.export_folder), outer = whole(options.folder);
  const fs::path between = inner.lexically_relative(outer);
  if (between.empty() || *between.begin() == "..") return {};
  return error(Code::kInvalidArgument,
               "--export {}: it is {} --checkpoints {}, which is for checkpoints alone: give a "
               "folder outside of it",
               options.export_folder, between == "." ? "the same folder as" : "inside of",
               options.folder);
}

}  // namespace

void add_checkpoint_options(CLI::App& app, CheckpointOptions& options) {
  CLI::App& here = app;
  here.option_defaults()->group("Checkpoints");
  here.add_option(
          "--checkpoints", options.folder,
          "Folder for checkpoints, each a folder step-NNNNNNNNN. It is made if it is missing. "
          "SIGUSR1, SIGTERM, Ctrl-C and the end of the run also write one")
      ->check(not_empty)
      ->type_name("FOLDER");
  here.add_option("--save-every", options.save_every, "Steps between checkpoints (0 = none)")
      ->type_name("N");
  here.add_option("--save-minutes", options.save_minutes, "Minutes between checkpoints (0 = none)")
      ->type_name("M");
  add_count(here, "--keep", options.keep, "Number of newest checkpoints that are kept (0 = all)")
      ->type_name("K");
  add_count(here, "--keep-every", options.keep_every,
            "Also keep checkpoints whose step is a multiple of N (0 = no others)")
      ->type_name("N");
  here.add_option(
          "--resume", options.resume,
          "Resume from a checkpoint: latest, none, or a checkpoint's folder. latest is the newest "
          "complete one in --checkpoints; if there is none yet, the run begins")
      ->check(not_empty)
      ->type_name("WHICH");
  here.add_option(
          "--init", options.init,
          "Begin with the weights of a Hugging Face folder or of a checkpoint. Its config.json is "
          "the model if neither --model nor --config is given")
      ->check(not_empty)
      ->type_name("FOLDER");
  here.add_option(
          "--export", options.export_folder,
          "At the end, write the model here in Hugging Face's format: a new folder, outside of "
          "--checkpoints")
      ->check(not_empty)
      ->type_name("FOLDER");
  here.add_option("--sample-every", options.sample_every,
                  "Steps between samples, lines in which the model continues a text (0 = none)")
      ->type_name("N");
  add_shadow(here, options.shadow_bytes);
  here.add_flag("--stop-after-save", options.stop_after_save,
                "End the run with exit code 0 after the checkpoint that SIGUSR1 asked for");
  here.add_option("--diverged-after", options.diverged_after,
                  "End the run with exit code 11 after N steps in a row without a finite loss or "
                  "gradient norm (0 = never)")
      ->type_name("N");
}

Problems check_checkpoint_options(const CheckpointOptions& options) {
  const auto at_least_0 = [](const char* flag, double given) {
    return given >= 0 && std::isfinite(given)
               ? Status()
               : error(Code::kInvalidArgument, "{} must be at least 0, but {} was given", flag,
                       given);
  };
  const auto within_steps = [&](const char* flag, uint64_t given) {
    return given <= kMostSteps ? Status()
                               : error(Code::kInvalidArgument,
                                       "{} must be at most {}, the most steps that a run can have, "
                                       "but {} was given",
                                       flag, kMostSteps, given);
  };
  const auto steps_between = [&](const char* flag, int64_t given) {
    const Status status = at_least_0(flag, static_cast<double>(given));
    return status.ok() ? within_steps(flag, static_cast<uint64_t>(given)) : status;
  };
  Problems problems;
  problems.add(steps_between("--save-every", options.save_every));
  problems.add(at_least_0("--save-minutes", options.save_minutes));
  problems.add(steps_between("--sample-every", options.sample_every));
  problems.add(within_steps("--keep-every", options.keep_every));
  problems.add(steps_between("--diverged-after", options.diverged_after));
  problems.add(check_export(options));
  // latest may find none yet; what --resume names is there, and is what the run begins with.
  if (!options.init.empty() && options.resumes() && options.resume != "latest") {
    problems.add(error(Code::kInvalidArgument,
                       "--init {} and --resume {}: a run begins with one of them; leave out --init "
                       "to continue from the checkpoint, or --resume to start again",
                       options.init, options.resume));
  }
  if (!options.folder.empty()) return problems;
  const std::pair<const char*, bool> in_the_folder[] = {
      {"--save-every", options.save_every > 0},
      {"--save-minutes", options.save_minutes > 0},
      {"--keep", options.keep != CheckpointOptions().keep},
      {"--keep-every", options.keep_every > 0},
      {"--shadow", options.shadow_bytes.has_value()},
      {"--stop-after-save", options.stop_after_save},
      {"--resume latest", options.resume == "latest"},
  };
  for (const auto& [flag, given] : in_the_folder) {
    if (given) problems.add(needs_folder(flag));
  }
  return problems;
}

}  // namespace elixir
