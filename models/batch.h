#pragma once

#include <ATen/core/Tensor.h>

#include "models/token_data.h"

namespace elixir {

struct Batch {
  at::Tensor inputs, targets;  // [rows, seq] int64, on the CPU
};

// The rows [first_row, first_row + rows) of `step` as tensors; errors as of TokenData::fill.
Result<Batch> read_batch(const TokenData& data, int64_t step, int64_t first_row, int64_t rows);

}  // namespace elixir
