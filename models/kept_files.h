#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "models/train_options.h"

namespace elixir {

// The extra files of a checkpoint, beside its tensors. Other programs need config.json to open the
// checkpoint. It is the folder's, with this run's type, or a new one if the folder has none. The
// others come from `folder`, for users of the model: tokenizer, vocabulary, settings for
// generation. The parameter `folder` names the source of the run's weights; "": there is none. All
// files together have at most 64 MiB. A file that does not fit is left out, with a warning.
//
// kBadInput: a file of the folder cannot be read, or its bytes are not those that were written.
Result<std::vector<std::pair<std::string, std::string>>> files_to_keep(const std::string& folder,
                                                                       const TrainOptions& options);

}  // namespace elixir
