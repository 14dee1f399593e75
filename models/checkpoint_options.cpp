#include "models/checkpoint_options.h"

#include <cmath>
#include <cstdlib>

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

}  // namespace

void add_checkpoint_options(CLI::App& app, CheckpointOptions& options) {
  const auto group = app.add_option_group("Checkpoints");
  CLI::App& here = *group;
  here.add_option("--checkpoints", options.folder,
                  "Where checkpoints are written, each a folder step-NNNNNNNNN; made where it is "
                  "missing. SIGUSR1 and the end of the run write one, too")
      ->check(not_empty)
      ->type_name("FOLDER");
  here.add_option("--save-every", options.save_every, "Steps between checkpoints (0 = none)")
      ->type_name("N");
  here.add_option("--save-minutes", options.save_minutes, "Minutes between checkpoints (0 = none)")
      ->type_name("M");
  add_count(here, "--keep", options.keep, "How many of the newest stay (0 = all)")->type_name("K");
  add_count(here, "--keep-every", options.keep_every,
            "Checkpoints whose step is a multiple of it stay as well (0 = no others)")
      ->type_name("N");
  here.add_option("--resume", options.resume,
                  "Go on from a checkpoint: latest (the newest whole one of --checkpoints; where "
                  "there is none yet, begin), none, or its folder")
      ->check(not_empty)
      ->type_name("WHICH");
  here.add_option("--init", options.init,
                  "Begin with the weights of a Hugging Face folder or of a checkpoint, whose "
                  "config.json is the model where neither --model nor --config is given")
      ->check(not_empty)
      ->type_name("FOLDER");
  here.add_option("--export", options.export_folder,
                  "At the end, write the model here as Hugging Face has it; it must not be there")
      ->check(not_empty)
      ->type_name("FOLDER");
  here.add_option("--sample-every", options.sample_every,
                  "Steps between lines of what the model continues a text with (0 = none)")
      ->type_name("N");
  add_shadow(here, options.shadow_bytes);
  here.add_flag("--stop-after-save", options.stop_after_save,
                "The run ends with 0 once the checkpoint is there that SIGUSR1 asked for");
}

Status check_checkpoint_options(const CheckpointOptions& options) {
  const auto at_least_0 = [](const char* flag, double given) {
    return given >= 0 && std::isfinite(given)
               ? Status()
               : error(Code::kInvalidArgument, "{} must be at least 0, but {} was given", flag,
                       given);
  };
  ELIXIR_RETURN_IF_ERROR(at_least_0("--save-every", static_cast<double>(options.save_every)));
  ELIXIR_RETURN_IF_ERROR(at_least_0("--save-minutes", options.save_minutes));
  ELIXIR_RETURN_IF_ERROR(at_least_0("--sample-every", static_cast<double>(options.sample_every)));
  if (!options.folder.empty()) return {};
  if (options.save_every > 0) return needs_folder("--save-every");
  if (options.save_minutes > 0) return needs_folder("--save-minutes");
  if (options.stop_after_save) return needs_folder("--stop-after-save");
  if (options.resume == "latest") return needs_folder("--resume latest");
  return {};
}

}  // namespace elixir
