#pragma once

// The folders that a run will write, looked at before it starts.

#include "base/status.h"
#include "models/export_room.h"
#include "models/run_start.h"
#include "models/train_options.h"

namespace elixir {

// Rank 0 takes the room for --export, and others none. Throws kResourceExhausted where there is too
// little.
ExportRoom hold_export_room(const TrainOptions& options, const RunStart& start);

// Rank 0 logs which fields are ignored of the config.json that says the model, or that lies beside
// the weights.
void say_unused_fields(const TrainOptions& options, const RunStart& start);

}  // namespace elixir
