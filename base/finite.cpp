#include "base/finite.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace elixir {
namespace {

// Without their sign, a float's bits are ordered as its values are; infinity and NaN come last.
constexpr uint32_t kInfinity = 0x7f800000;

// The least magnitude that is infinite once rounded: half a step above the largest value. It is a
// tie, and the even neighbour is infinity.
uint32_t least_too_large(ComputeType kept_as) {
  switch (kept_as) {
    case ComputeType::kFp16:
      return std::bit_cast<uint32_t>(65520.0f);
    case ComputeType::kBf16:
      return 0x7f7f8000;
    case ComputeType::kFp32:
      break;
  }
  return kInfinity;
}

struct FromBf16 {
  using Word = uint16_t;
  static uint32_t magnitude(Word word) { return static_cast<uint32_t>(word & 0x7fff) << 16; }
};

// Exact for infinity and NaN. A finite one is below 65520, whatever its exact value.
struct FromFp16 {
  using Word = uint16_t;
  static uint32_t magnitude(Word word) { return (word & 0x7c00) == 0x7c00 ? kInfinity : 0; }
};

struct FromFp32 {
  using Word = uint32_t;
  static uint32_t magnitude(Word word) { return word & 0x7fffffff; }
};

// A negative value's bits are above infinity's. -0 is 0.
struct FromFp32Square {
  using Word = uint32_t;
  static uint32_t magnitude(Word word) { return word == 0x80000000 ? 0 : word; }
};

template <typename From>
ValueCounts count(std::span<const std::byte> bytes, uint32_t least) {
  using Word = typename From::Word;
  constexpr size_t kBlock = 1 << 14;  // its counts fit 32 bits, so that lanes are as wide as values
  const size_t numel = bytes.size() / sizeof(Word);
  ValueCounts counts;
  for (size_t first = 0; first < numel; first += kBlock) {
    const size_t end = std::min(numel, first + kBlock);
    uint32_t beyond = 0, not_finite = 0;
    for (size_t i = first; i < end; ++i) {
      Word word;
      std::memcpy(&word, bytes.data() + i * sizeof word, sizeof word);
      const uint32_t magnitude = From::magnitude(word);
      beyond += magnitude >= least ? 1 : 0;
      not_finite += magnitude >= kInfinity ? 1 : 0;
    }
    counts += {.not_finite = not_finite, .too_large = beyond - not_finite};
  }
  return counts;
}

// A finite double may round to an infinite float: it is too large then, whatever it is kept as.
ValueCounts count_fp64(std::span<const std::byte> bytes, uint32_t least) {
  constexpr uint64_t kInfinity64 = uint64_t{0x7ff} << 52;
  ValueCounts counts;
  for (size_t i = 0; i < bytes.size() / sizeof(double); ++i) {
    double value = 0;
    std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
    if ((std::bit_cast<uint64_t>(value) & ~(uint64_t{1} << 63)) >= kInfinity64) {
      ++counts.not_finite;
    } else if ((std::bit_cast<uint32_t>(static_cast<float>(value)) & 0x7fffffff) >= least) {
      ++counts.too_large;
    }
  }
  return counts;
}

}  // namespace

ValueFormat format_of(ComputeType type) {
  switch (type) {
    case ComputeType::kBf16:
      return ValueFormat::kBf16;
    case ComputeType::kFp16:
      return ValueFormat::kFp16;
    case ComputeType::kFp32:
      break;
  }
  return ValueFormat::kFp32;
}

size_t value_bytes(ValueFormat format) {
  switch (format) {
    case ValueFormat::kBf16:
    case ValueFormat::kFp16:
      return 2;
    case ValueFormat::kFp32:
    case ValueFormat::kFp32Square:
      return 4;
    case ValueFormat::kFp64:
      return 8;
    case ValueFormat::kNone:
      break;
  }
  return 1;
}

ValueCounts count_values(ValueFormat format, std::span<const std::byte> bytes,
                         ComputeType kept_as) {
  const uint32_t least = least_too_large(kept_as);
  switch (format) {
    case ValueFormat::kBf16:
      return count<FromBf16>(bytes, least);
    case ValueFormat::kFp16:
      return count<FromFp16>(bytes, least);
    case ValueFormat::kFp32:
      return count<FromFp32>(bytes, least);
    case ValueFormat::kFp32Square:
      return count<FromFp32Square>(bytes, least);
    case ValueFormat::kFp64:
      return count_fp64(bytes, least);
    case ValueFormat::kNone:
      break;
  }
  return {};
}

double largest_value(ComputeType type) {
  switch (type) {
    case ComputeType::kFp16:
      return 65504;
    case ComputeType::kBf16:
      return std::bit_cast<float>(0x7f7f0000u);
    case ComputeType::kFp32:
      break;
  }
  return std::bit_cast<float>(0x7f7fffffu);
}

}  // namespace elixir
