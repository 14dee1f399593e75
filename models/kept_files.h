#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "models/train_options.h"

namespace elixir {

// What a checkpoint holds beside tensors: config.json, by which it opens elsewhere, and where the
// run begins with a folder ("": it does not), what that has for those who use the model: tokenizer,
// vocabulary, how to generate. config.json is the folder's with this run's type, where it has one;
// else it is written. At most 64 MiB together: what does not fit is left out, with a warning.
//
// kBadInput: the folder's file cannot be read, or is not what was written.
Result<std::vector<std::pair<std::string, std::string>>> files_to_keep(const std::string& folder,
                                                                       const TrainOptions& options);

}  // namespace elixir
