#include "client/exchange/frozen_words.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

namespace elixir {
namespace {

TEST(FrozenWords, EveryPatternOf16BitsIsTheSameAfterwards) {
  std::vector<uint16_t> halves(1 << 16), back(halves.size());
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  std::vector<float> words(halves.size());
  for (const ComputeType type : {ComputeType::kBf16, ComputeType::kFp16}) {
    frozen_to_words(type, halves.data(), words);
    words_to_frozen(type, words, back.data());
    EXPECT_EQ(back, halves);
  }
  uint32_t word;
  std::memcpy(&word, &words[0x3c01], sizeof word);
  EXPECT_EQ(word, 0x3c010000u);  // in the upper half
}

TEST(FrozenWords, OfFp32AreItsBits) {
  const std::vector<uint32_t> bits = {0, 0x7fa00001, 0xffffffff, 0x3f800000, 0x80000000};
  std::vector<float> words(bits.size());
  std::vector<uint32_t> back(bits.size());
  frozen_to_words(ComputeType::kFp32, bits.data(), words);
  words_to_frozen(ComputeType::kFp32, words, back.data());
  EXPECT_EQ(back, bits);
}

}  // namespace
}  // namespace elixir
