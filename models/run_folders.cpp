#include "models/run_folders.h"

#include <set>
#include <string>

#include "base/log.h"
#include "base/throw_error.h"
#include "checkpoint/save_place.h"
#include "models/kept_files.h"
#include "planner/models/config_json.h"
#include "planner/models/model_request.h"

namespace elixir {

ExportRoom hold_export_room(const TrainOptions& options, const RunStart& start) {
  const std::string& folder = options.checkpoints.export_folder;
  if (folder.empty() || options.run.environment->rank != 0) return ExportRoom();
  const uint64_t bytes =
      value_or_throw(export_bytes(options, value_or_throw(files_to_keep(start.folder, options))));
  return value_or_throw(
      ExportRoom::hold(folder, value_or_throw(checkpoints::save_place(folder)).parent_path, bytes));
}

void say_unused_fields(const TrainOptions& options, const RunStart& start) {
  if (options.run.environment->rank != 0) return;
  std::set<std::string> paths = {planner::config_path(options.model.config_path)};
  if (!start.folder.empty()) paths.insert(start.folder + "/config.json");
  for (const std::string& path : paths) {
    const Result<std::string> text = planner::read_config_file(path);
    const std::string line = text.ok() ? planner::unused_fields_line(path, *text) : "";
    if (!line.empty()) log_warn("config_fields", "why=\"{}\"", line);
  }
}

}  // namespace elixir
