#include "tests/fake_nccl/reduce.h"

#include <bit>
#include <cmath>
#include <cstdint>

namespace fake_nccl {
namespace {

float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);  // to even
}

// A value as it lies in memory, and as it is summed.
template <typename Stored>
struct Plain {
  using stored = Stored;
  static float load(Stored value) { return static_cast<float>(value); }
  static Stored store(float value) { return static_cast<Stored>(value); }
};

struct Bf16 {
  using stored = uint16_t;
  static float load(uint16_t value) { return bf16_to_float(value); }
  static uint16_t store(float value) { return float_to_bf16(value); }
};

template <typename Type>
void sum(const std::vector<const std::byte*>& sources, std::byte* out, size_t count) {
  using Stored = typename Type::stored;
  const auto at = [&](size_t source, size_t i) {
    return Type::load(reinterpret_cast<const Stored*>(sources[source])[i]);
  };
  for (size_t i = 0; i < count; ++i) {
    float total = at(0, i);
    for (size_t source = 1; source < sources.size(); ++source) total += at(source, i);
    reinterpret_cast<Stored*>(out)[i] = Type::store(total);
  }
}

}  // namespace

size_t element_bytes(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclFloat32:
      return 4;
    default:
      return 0;
  }
}

void sum_in_order(const std::vector<const std::byte*>& sources, std::byte* out, size_t count,
                  ncclDataType_t type) {
  if (type == ncclFloat16) sum<Plain<_Float16>>(sources, out, count);
  if (type == ncclBfloat16) sum<Bf16>(sources, out, count);
  if (type == ncclFloat32) sum<Plain<float>>(sources, out, count);
}

}  // namespace fake_nccl
