#pragma once

#include <ATen/core/Tensor.h>

#include "client/tensors/scalar_type.h"
#include "models/decoder.h"
#include "models/token_data.h"
#include "models/train_options.h"

namespace elixir {

// The model and the data that a command line asks for.
DecoderOptions model_options(const TrainOptions& options);

// The files of --data, or the default text; errors as of TokenData::open and default_text().
// kBadInput: no --data for a model of --init or --config; text for a model whose tokens are not
// bytes, which its folder's tokenizer or its vocabulary says, without --bytes.
Result<TokenData> open_data(const TrainOptions& options);

struct Batch {
  at::Tensor inputs, targets;  // [rows, seq] int64, on the CPU
};

// The rows [first_row, first_row + rows) of `step`; errors as of TokenData::fill.
Result<Batch> read_batch(const TokenData& data, int64_t step, int64_t first_row, int64_t rows);

}  // namespace elixir
