#include "client/exchange/frozen_words.h"

#include <cstdint>
#include <cstring>

namespace elixir {

void frozen_to_words(ComputeType type, const void* values, std::span<float> words) {
  if (type == ComputeType::kFp32) {
    std::memcpy(words.data(), values, words.size_bytes());
    return;
  }
  for (size_t i = 0; i < words.size(); ++i) {
    uint16_t half;
    std::memcpy(&half, static_cast<const std::byte*>(values) + i * sizeof half, sizeof half);
    const uint32_t word = uint32_t{half} << 16;
    std::memcpy(&words[i], &word, sizeof word);
  }
}

void words_to_frozen(ComputeType type, std::span<const float> words, void* values) {
  if (type == ComputeType::kFp32) {
    std::memcpy(values, words.data(), words.size_bytes());
    return;
  }
  for (size_t i = 0; i < words.size(); ++i) {
    uint32_t word;
    std::memcpy(&word, &words[i], sizeof word);
    const auto half = static_cast<uint16_t>(word >> 16);
    std::memcpy(static_cast<std::byte*>(values) + i * sizeof half, &half, sizeof half);
  }
}

}  // namespace elixir
