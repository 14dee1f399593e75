#pragma once

// Weights in safetensors files that a quantiser has made smaller. The names and types of the
// tensors beside them identify them. No tensor is read.

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "planner/models/transformer_config.h"

namespace elixir::planner {

// All quantised weights of one type.
struct QuantisedWeights {
  std::string type;  // "int8", "fp8 (F8_E4M3)", "4-bit (GPTQ)"
  uint64_t tensors = 0;
  uint64_t params = 0;  // the elements that the tensors stand for
  uint64_t bytes = 0;
};

// A model's tensors, sorted by what they are.
struct SortedTensors {
  // Floating-point parameters, and quantised ones with their own shape. Packed ones have one
  // dimension with the number of elements that they stand for.
  std::vector<NamedShape> parameters = {};
  std::vector<QuantisedWeights> quantised = {};  // part of `parameters`
  // Tensors that are no parameters: integers, bools, known buffers, and quantisers' scales and zero
  // points.
  uint64_t buffers = 0, buffer_bytes = 0;
};

// Sorts tensors. It knows int8 (bitsandbytes' and others'), FP8, and packed weights of
// bitsandbytes, GPTQ, AWQ, compressed-tensors and MXFP4. Packed weights count as 4-bit ones if no
// tensor says how many bits they have.
SortedTensors sort_tensors(std::vector<checkpoints::TensorEntry> tensors);

}  // namespace elixir::planner
