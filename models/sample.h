#pragma once

#include <string>

#include "base/status.h"
#include "client/elixir.h"
#include "models/decoder.h"
#include "models/token_data.h"
#include "models/train_options.h"

namespace elixir {

// What the model continues the first tokens of the data with, after so many steps; for one line:
// text in quotation marks, or numbers. Between step() and backward(); all ranks. Changes nothing of
// the training: neither bits nor random numbers. Not ok, as of generate(): there is none.
Result<std::string> sample(Decoder& model, const TokenData& data, const TrainOptions& options,
                           int64_t steps, Optimizer& optimizer);

}  // namespace elixir
