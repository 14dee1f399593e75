#pragma once

// Checks of the folders that a run will read and write, before it starts.

#include "base/status.h"
#include "models/export_room.h"
#include "models/run_start.h"
#include "models/train_options.h"

namespace elixir {

// Reserves disk space for --export on rank 0; other ranks reserve none. Throws kResourceExhausted
// if there is too little.
ExportRoom hold_export_room(const TrainOptions& options, const RunStart& start);

// On rank 0, logs the fields that Elixir ignores in the model's config.json, or in the one beside
// the weights.
void say_unused_fields(const TrainOptions& options, const RunStart& start);

}  // namespace elixir
