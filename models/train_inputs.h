#pragma once

#include <ATen/core/Tensor.h>

#include "client/tensors/scalar_type.h"
#include "models/decoder.h"
#include "models/open_data.h"
#include "models/train_options.h"

namespace elixir {

// The model's options, as the command line gives them.
DecoderOptions model_options(const TrainOptions& options);

struct Batch {
  at::Tensor inputs, targets;  // [rows, seq] int64, on the CPU
};

// The rows [first_row, first_row + rows) of `step`. Errors: those of TokenData::fill.
Result<Batch> read_batch(const TokenData& data, int64_t step, int64_t first_row, int64_t rows);

}  // namespace elixir
