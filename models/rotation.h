#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "planner/models/rotary.h"

namespace elixir {

// Rotary positions: cosines and sines of the angles position * frequency, [seq, width]. Each angle
// is there twice, because it turns a pair (i, i + width / 2). Without scaling the frequencies are
// base^(-2 i / width). `width` is a head's, or its first part that is turned.
struct Rotation {
  Rotation(const planner::Rotary& rotary, int64_t seq, int64_t width,
           const at::TensorOptions& options);

  // Rotates x [batch, heads, seq, head_width], with Hugging Face's order of pairs.
  at::Tensor turn(const at::Tensor& x) const;

  at::Tensor cosines, sines;
};

}  // namespace elixir
