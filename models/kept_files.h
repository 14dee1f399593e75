#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "models/train_options.h"

namespace elixir {

// The extra files of a checkpoint, beside its tensors. They are config.json, which other programs
// need to open the checkpoint, and files of `folder` for users of the model: tokenizer, vocabulary,
// settings for generation. `folder` is where the run's weights come from; "": there is none.
// config.json is the folder's, with this run's type. If the folder has none, it is written. All
// files together have at most 64 MiB. A file that does not fit is left out, with a warning.
//
// kBadInput: a file of the folder cannot be read, or its bytes are not those that were written.
Result<std::vector<std::pair<std::string, std::string>>> files_to_keep(const std::string& folder,
                                                                       const TrainOptions& options);

}  // namespace elixir
