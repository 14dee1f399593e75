#include "tests/fake_nccl/reduce.h"

#include <algorithm>
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

// A value as it lies in memory, and the type in which it is reduced.
template <typename Stored, typename Sum>
struct Plain {
  using stored = Stored;
  using sum = Sum;
  static Sum load(Stored value) { return static_cast<Sum>(value); }
  static Stored store(Sum value) { return static_cast<Stored>(value); }
};

struct Bf16 {
  using stored = uint16_t;
  using sum = float;
  static float load(uint16_t value) { return bf16_to_float(value); }
  static uint16_t store(float value) { return float_to_bf16(value); }
};

template <typename Sum>
Sum combine(Sum a, Sum b, ncclRedOp_t op) {
  switch (op) {
    case ncclProd:
      return a * b;
    case ncclMax:
      return std::max(a, b);
    case ncclMin:
      return std::min(a, b);
    default:
      return a + b;
  }
}

template <typename Type>
void reduce(const std::vector<const std::byte*>& sources, std::byte* out, size_t count,
            ncclRedOp_t op) {
  using Stored = typename Type::stored;
  using Sum = typename Type::sum;
  const auto at = [&](size_t source, size_t i) {
    return Type::load(reinterpret_cast<const Stored*>(sources[source])[i]);
  };
  for (size_t i = 0; i < count; ++i) {
    Sum sum = at(0, i);
    for (size_t source = 1; source < sources.size(); ++source) {
      sum = combine(sum, at(source, i), op);
    }
    if (op == ncclAvg) sum /= static_cast<Sum>(sources.size());
    reinterpret_cast<Stored*>(out)[i] = Type::store(sum);
  }
}

}  // namespace

size_t element_bytes(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 0;
  }
}

bool reduce_in_order(const std::vector<const std::byte*>& sources, std::byte* out, size_t count,
                     ncclDataType_t type, ncclRedOp_t op) {
  if (op >= ncclNumOps) return false;
  switch (type) {
    case ncclInt8:
      reduce<Plain<int8_t, int64_t>>(sources, out, count, op);
      return true;
    case ncclUint8:
      reduce<Plain<uint8_t, uint64_t>>(sources, out, count, op);
      return true;
    case ncclInt32:
      reduce<Plain<int32_t, int64_t>>(sources, out, count, op);
      return true;
    case ncclUint32:
      reduce<Plain<uint32_t, uint64_t>>(sources, out, count, op);
      return true;
    case ncclInt64:
      reduce<Plain<int64_t, int64_t>>(sources, out, count, op);
      return true;
    case ncclUint64:
      reduce<Plain<uint64_t, uint64_t>>(sources, out, count, op);
      return true;
    case ncclFloat16:
      reduce<Plain<_Float16, float>>(sources, out, count, op);
      return true;
    case ncclBfloat16:
      reduce<Bf16>(sources, out, count, op);
      return true;
    case ncclFloat32:
      reduce<Plain<float, float>>(sources, out, count, op);
      return true;
    case ncclFloat64:
      reduce<Plain<double, double>>(sources, out, count, op);
      return true;
    default:
      return false;
  }
}

}  // namespace fake_nccl
