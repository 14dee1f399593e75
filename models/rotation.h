#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "planner/models/rotary.h"

namespace elixir {

// Cosines and sines of the angles position * frequency, [seq, head_width], each angle twice: for a
// pair (i, i + head_width / 2). Without scaling the frequencies are base^(-2 i / head_width).
struct Rotation {
  Rotation(const planner::Rotary& rotary, int64_t seq, int64_t head_width,
           const at::TensorOptions& options);

  // x [batch, heads, seq, head_width]; Hugging Face's order of pairs.
  at::Tensor turn(const at::Tensor& x) const;

  at::Tensor cosines, sines;
};

}  // namespace elixir
