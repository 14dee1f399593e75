#include "models/written_folders.h"

#include "checkpoint/save_place.h"

namespace elixir {

Status check_written(const TrainOptions& options) {
  const CheckpointOptions& folders = options.checkpoints;
  const bool writes = !folders.folder.empty() || !folders.export_folder.empty();
  const auto& environment = options.run.environment;
  if (writes && environment && !environment->one_node()) {
    return error(Code::kInvalidArgument,
                 "--checkpoints and --export: a run over several nodes cannot save yet; leave "
                 "them out (--resume FOLDER and --init FOLDER work)");
  }
  if (folders.export_folder.empty()) return {};
  return checkpoints::save_place(folders.export_folder).status();
}

}  // namespace elixir
