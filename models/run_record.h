#pragma once

// What a checkpoint keeps of the command line that wrote it, beside the model: the manifest's
// `program`, a JSON object.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/train_options.h"

namespace elixir {

// What the weights depend on beside the checkpoint: the model's name, seed, steps (the learning
// rate's schedule), batch, sequence, passes, ranks, dropout, and the data's files with their sizes.
std::string run_record(const TrainOptions& options, const std::vector<std::string>& data_files,
                       uint32_t ranks);

// One line for each field in which `now` differs from what was written with the checkpoint, which
// anybody may have written: "seed was 1 and is 2". "" and other programs' text have none.
std::vector<std::string> record_differences(std::string_view written, std::string_view now);

}  // namespace elixir
