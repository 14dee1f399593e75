#include <memory>

#include "ctl/command.h"
#include "ctl/doctor.h"

namespace elixir::ctl {

Command add_doctor(CLI::App& app) {
  struct Arguments {
    DoctorOptions options;
    bool json = false;
  };
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* doctor = app.add_subcommand(
      "doctor",
      "Shows what this machine has for training, what is missing, and the command that fixes it");
  doctor->add_flag("--json", arguments->json, "Print one JSON object");
  doctor->add_flag("--gpu", arguments->options.gpu,
                   "You want a GPU: it is a problem if none can be used");
  doctor->add_option("--runtime-dir", arguments->options.runtime_dir,
                     "elixird's folder (default: ELIXIR_RUNTIME_DIR, else one of this user)");
  return {doctor, [arguments] { return doctor_command(arguments->options, arguments->json); }};
}

}  // namespace elixir::ctl
