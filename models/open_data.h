#pragma once

#include <optional>

#include "base/problems.h"
#include "base/status.h"
#include "models/token_data.h"
#include "models/train_options.h"

namespace elixir {

// Opens the files of --data, or the default text. Errors: those of TokenData::open and
// default_text(). kBadInput also if there is no --data for a model of --init or --config. Or if the
// data is text, the model's tokens are not bytes (its folder's tokenizer or its vocabulary says
// so), and --bytes is not given.
Result<TokenData> open_data(const TrainOptions& options);

// Opens the files of --val-data; empty if it is not given. Errors: those of open_data().
Result<std::optional<TokenData>> open_validation_data(const TrainOptions& options);

// Finds all problems with --data, --labels, --val-data and --val-labels. If options.config is
// empty, because the model is not known, does not compare tokens with its vocabulary. Does not look
// at the default text.
Problems check_data(const TrainOptions& options);

}  // namespace elixir
