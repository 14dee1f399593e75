#pragma once

#include <optional>

#include "base/problems.h"
#include "base/status.h"
#include "models/token_data.h"
#include "models/train_options.h"

namespace elixir {

// The files of --data, or the default text; errors as of TokenData::open and default_text().
// kBadInput: no --data for a model of --init or --config; text for a model whose tokens are not
// bytes, which its folder's tokenizer or its vocabulary says, without --bytes.
Result<TokenData> open_data(const TrainOptions& options);

// The files of --val-data, or nothing if it is not given. Errors are those of --data.
Result<std::optional<TokenData>> open_validation_data(const TrainOptions& options);

// All that is wrong with --data, --labels, --val-data and --val-labels. If options.config is empty,
// because the model is not known, their tokens are not compared with its vocabulary. The default
// text is not looked at.
Problems check_data(const TrainOptions& options);

}  // namespace elixir
