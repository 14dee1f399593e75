#pragma once

// Weights that a quantiser has made smaller, as they lie in safetensors files. They are known by
// the names and types of the tensors beside them; no tensor is read.

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "planner/models/transformer_config.h"

namespace elixir::planner {

// All of one type.
struct QuantisedWeights {
  std::string type;  // "int8", "fp8 (F8_E4M3)", "4-bit (GPTQ)"
  uint64_t tensors = 0;
  uint64_t params = 0;  // that they stand for
  uint64_t bytes = 0;
};

// A model's tensors, sorted by what they are.
struct SortedTensors {
  // Floating-point parameters, and quantised ones with their shape; packed ones have as many
  // elements as they stand for, in one dimension.
  std::vector<NamedShape> parameters = {};
  std::vector<QuantisedWeights> quantised = {};  // part of `parameters`
  // No parameters: integers, bools, known buffers, and the scales and zero points of quantisers.
  uint64_t buffers = 0, buffer_bytes = 0;
};

// int8 (bitsandbytes' and others'), FP8, and packed weights of bitsandbytes, GPTQ, AWQ,
// compressed-tensors and MXFP4. Packed weights whose bits no tensor says count as 4-bit ones.
SortedTensors sort_tensors(std::vector<checkpoints::TensorEntry> tensors);

}  // namespace elixir::planner
