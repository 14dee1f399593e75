#pragma once

#include <string>

#include "base/status.h"
#include "client/elixir.h"
#include "models/decoder.h"
#include "models/token_data.h"
#include "models/train_options.h"

namespace elixir {

// The model's continuation of the data's first tokens after `steps` steps, on one line: text in
// quotation marks, or numbers. Does not change the training: neither bits nor random numbers.
// Errors: those of generate().
// REQUIRES: all ranks call it, between step() and backward().
Result<std::string> sample(Decoder& model, const TokenData& data, const TrainOptions& options,
                           int64_t steps, Optimizer& optimizer);

}  // namespace elixir
