#include "shm/load_part.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

namespace elixir::shm {
namespace {

template <typename Element>
void to_words(ComputeType type, const std::vector<Element>& values, std::vector<float>& words) {
  take_part(reinterpret_cast<const std::byte*>(values.data()), values.size(), frozen_part(type),
            words.data());
}
template <typename Element>
void from_words(ComputeType type, const std::vector<float>& words, std::vector<Element>& values) {
  put_part(words.data(), words.size(), frozen_part(type),
           reinterpret_cast<std::byte*>(values.data()));
}

TEST(FrozenPart, EveryPatternOf16BitsIsTheSameAfterwards) {
  std::vector<uint16_t> halves(1 << 16), back(halves.size());
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  std::vector<float> words(halves.size());
  for (const ComputeType type : {ComputeType::kBf16, ComputeType::kFp16}) {
    to_words(type, halves, words);
    from_words(type, words, back);
    EXPECT_EQ(back, halves);
  }
  uint32_t word;
  std::memcpy(&word, &words[0x3c01], sizeof word);
  EXPECT_EQ(word, 0x3c010000u);  // in the upper half
}

TEST(FrozenPart, OfFp32AreItsBits) {
  const std::vector<uint32_t> bits = {0, 0x7fa00001, 0xffffffff, 0x3f800000, 0x80000000};
  std::vector<float> words(bits.size());
  std::vector<uint32_t> back(bits.size());
  to_words(ComputeType::kFp32, bits, words);
  from_words(ComputeType::kFp32, words, back);
  EXPECT_EQ(back, bits);
}

}  // namespace
}  // namespace elixir::shm
