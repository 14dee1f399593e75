// elixir-convert: optimizer states of checkpoints, to and from files of torch.save(). elixirctl
// checkpoint export and import run it, so that elixirctl links no LibTorch.

#include <optional>
#include <string>

#include "base/cli.h"
#include "base/compute_type_names.h"
#include "base/inherited.h"
#include "base/run_main.h"
#include "models/convert.h"

namespace elixir {
namespace {

CLI::App* add_export(CLI::App& app, ExportRequest& request) {
  CLI::App* const command =
      app.add_subcommand("export", "Writes a checkpoint's Adam states as torch has them");
  command->add_option("checkpoint", request.checkpoint, "A checkpoint of Elixir's")->required();
  command->add_option("--torch", request.torch_file, "The new file to write, for torch.load()");
  command->add_option("--masters", request.masters_file,
                      "A new .safetensors file to write, of the parameters in FP32");
  command->add_option("--names", request.names_file, "The parameters' order: a name a line");
  return command;
}

CLI::App* add_import(CLI::App& app, ImportRequest& request) {
  CLI::App* const command =
      app.add_subcommand("import", "Makes a checkpoint of a model and torch's Adam states");
  command->add_option("--torch", request.torch_file, "A file of torch.save()")->required();
  command->add_option("--model", request.model, "A Hugging Face folder")->required();
  command->add_option("--output", request.output, "The checkpoint to make")->required();
  command->add_option("--names", request.names_file, "The optimizer's parameters: a name a line");
  command->add_option("--step", request.step, "Steps made so far (default: Adam's count)");
  add_choice(*command, "--dtype", request.type, kComputeTypeNames, "bf16, fp16 or fp32");
  return command;
}

int convert_main(int argc, const char* const* argv) {
  CLI::App app("Converts optimizer states between checkpoints and files of torch.save().",
               "elixir-convert");
  init_cli(app);
  app.require_subcommand(0, 1);
  ExportRequest export_request;
  ImportRequest import_request;
  const CLI::App* const export_command = add_export(app, export_request);
  const CLI::App* const import_command = add_import(app, import_request);
  if (const int code = parse_cli(app, argc, argv); code >= 0) return code;
  Status status = error(Code::kInvalidArgument, "no command: export or import");
  if (export_command->parsed()) status = export_torch(export_request);
  if (import_command->parsed()) status = import_torch(import_request);
  return status.ok() ? 0 : report_failure(app, status);
}

}  // namespace
}  // namespace elixir

int main(int argc, char** argv) {
  elixir::settle_inherited();
  return elixir::run_main("elixir-convert", [&] { return elixir::convert_main(argc, argv); });
}
