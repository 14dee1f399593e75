#pragma once

// Arrays for adam_update, and random floats of every kind to fill them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "optim_cpu/adam.h"
#include "tests/support/sanitized.h"

namespace elixir::optim {

// Sanitizer builds run one in kShare cases.
inline constexpr uint64_t kShare = kSanitized ? 32 : 1;

// Steele, Lea, Flood: SplitMix64.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }
  uint64_t below(uint64_t limit) { return next() % limit; }

  // In [-scale, scale).
  float uniform(float scale) {
    return static_cast<float>(static_cast<int64_t>(next()) * 0x1p-63) * scale;
  }

  // Half of the values are as in training. The others are any bits, denormals, and the ends of the
  // range.
  uint32_t float_of_any_kind() {
    static constexpr uint32_t kEnds[] = {0x00000000, 0x80000000, 0x7f800000, 0xff800000,
                                         0x7fc00000, 0xffc12345, 0x7f800001, 0x00000001,
                                         0x807fffff, 0x00800000, 0x7f7fffff, 0xff7fffff,
                                         0x3f800000, 0x3f818000, 0xbf818000, 0x477ff000};
    const uint64_t bits = next();
    const auto low = static_cast<uint32_t>(bits);
    switch (bits >> 61) {
      case 0:
        return low;
      case 1:
        return low & 0x807fffff;
      case 2:
        return kEnds[bits >> 32 & 15];
      case 3:  // 9 significant bits: ties of BF16 where nothing is added
        return (low & 0x80ff8000) | 0x38000000;
      default:  // 2^-31 to 2
        return (low & 0x8fffffff) | 0x30000000;
    }
  }

 private:
  uint64_t state_;
};

// One set of arrays, as adam_update takes them.
struct States {
  States(ComputeType compute_type, size_t elements, int n_grads = 1)
      : type(compute_type),
        numel(elements),
        param(elements * element_bytes(type)),
        master(elements * master_bytes(type)),
        exp_avg(elements),
        exp_avg_sq(elements),
        grads(n_grads, std::vector<std::byte>(elements * element_bytes(type))) {}

  void fill(Random& random) {
    fill_words(random, param);
    fill_words(random, master);
    for (float& value : exp_avg) value = bits_float(random.float_of_any_kind());
    for (float& value : exp_avg_sq) {  // mostly possible means of squares
      const uint32_t bits = random.float_of_any_kind();
      value = bits_float(bits & 0x1f ? bits & 0x7fffffff : bits);
    }
    for (std::vector<std::byte>& grad : grads) fill_words(random, grad);
  }

  // The span from `at` on. The gradients' addresses stay valid until the next call.
  UpdateSpan span(size_t at = 0, size_t length = SIZE_MAX) {
    grad_pointers.clear();
    for (const std::vector<std::byte>& grad : grads) {
      grad_pointers.push_back(grad.data() + at * element_bytes(type));
    }
    return {.type = type,
            .n_grads = static_cast<int>(grads.size()),
            .grads = grad_pointers.data(),
            .param = param.data() + at * element_bytes(type),
            .master = master.data() + at * master_bytes(type),
            .moments = {exp_avg.data() + at, exp_avg_sq.data() + at},
            .numel = length == SIZE_MAX ? numel - at : length};
  }

  // Compares the states bit by bit, not the gradients.
  bool same_bits(const States& other) const {
    if (numel == 0) return true;  // memcmp takes no null pointers
    return std::memcmp(param.data(), other.param.data(), param.size()) == 0 &&
           (master.empty() ||
            std::memcmp(master.data(), other.master.data(), master.size()) == 0) &&
           std::memcmp(exp_avg.data(), other.exp_avg.data(), numel * sizeof(float)) == 0 &&
           std::memcmp(exp_avg_sq.data(), other.exp_avg_sq.data(), numel * sizeof(float)) == 0;
  }

  ComputeType type;
  size_t numel;
  std::vector<std::byte> param, master;
  std::vector<float> exp_avg, exp_avg_sq;
  std::vector<std::vector<std::byte>> grads;
  std::vector<const void*> grad_pointers;

 private:
  // Fills with floats of any kind, even if the array holds 16-bit words. Their upper halves are
  // BF16 and FP16 values of any kind, their lower halves any bits.
  static void fill_words(Random& random, std::vector<std::byte>& bytes) {
    for (size_t i = 0; i < bytes.size(); i += 4) {
      uint32_t bits = random.float_of_any_kind();
      std::memcpy(bytes.data() + i, &bits, std::min<size_t>(4, bytes.size() - i));
    }
  }
};

inline constexpr ComputeType kTypes[] = {ComputeType::kBf16, ComputeType::kFp16,
                                         ComputeType::kFp32};

}  // namespace elixir::optim
