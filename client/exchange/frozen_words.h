#pragma once

#include <cstddef>
#include <span>

#include "base/compute_type.h"

namespace elixir {

// The values of frozen chunks travel where FP32 values of trained ones do (exchange.h), and are
// bytes: each element is a word of 32 bits that no arithmetic touches, of a 16-bit type its 16 bits
// in the upper half. So a payload that some program keeps in a 16-bit type, where bits that are a
// NaN mean something else, comes through as it is.

// `values`: as many of `type` as there are words.
void frozen_to_words(ComputeType type, const void* values, std::span<float> words);
void words_to_frozen(ComputeType type, std::span<const float> words, void* values);

}  // namespace elixir
