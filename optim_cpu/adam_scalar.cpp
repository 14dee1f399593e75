// The reference: adam_formula, and a square, on one float at a time.

#include "optim_cpu/gradient_lanes.h"

namespace elixir::optim {
namespace {

struct ScalarLanes {
  using Constants = AdamConstants<float>;

  float lane[kRedoVector];

  void keep() {}

  template <class Load>
  static ScalarLanes each(Load load) {
    ScalarLanes lanes;
    for (size_t i = 0; i < kRedoVector; ++i) lanes.lane[i] = load(i);
    return lanes;
  }

  static ScalarLanes load(const float* from) {
    return each([&](size_t i) { return from[i]; });
  }
  static ScalarLanes load_bf16(const uint16_t* from) {
    return each([&](size_t i) { return bf16_to_float(from[i]); });
  }
  static ScalarLanes load_half(const uint16_t* from) {
    return each([&](size_t i) { return half_to_float(from[i]); });
  }
  static ScalarLanes join_bf16(const uint16_t* param, const uint16_t* low) {
    return each([&](size_t i) { return optim::join_bf16(param[i], low[i]); });
  }

  static void end_stores() {}

  template <Via = Via::kCaches>
  void store(float* to) const {
    memcpy(to, lane, sizeof lane);
  }
  template <Via = Via::kCaches>
  void store_half(uint16_t* to) const {
    for (size_t i = 0; i < kRedoVector; ++i) to[i] = float_to_half(lane[i]);
  }
  template <Via = Via::kCaches>
  void split_bf16(uint16_t* param, uint16_t* low) const {
    for (size_t i = 0; i < kRedoVector; ++i) {
      const SplitBf16 halves = optim::split_bf16(lane[i]);
      param[i] = halves.param;
      low[i] = halves.low;
    }
  }

  friend ScalarLanes add(const ScalarLanes& a, const ScalarLanes& b) {
    return each([&](size_t i) { return optim::add(a.lane[i], b.lane[i]); });
  }
  friend ScalarLanes one_nan(const ScalarLanes& a) {
    return each([&](size_t i) { return optim::one_nan(a.lane[i]); });
  }
};

struct ScalarSquares {
  double lane[kRedoVector] = {};

  unsigned add(const ScalarLanes& lanes) {
    unsigned nonfinite = 0;
    for (size_t i = 0; i < kRedoVector; ++i) {
      const double value = lanes.lane[i];
      if ((float_bits(lanes.lane[i]) & 0x7f800000) == 0x7f800000) {
        ++nonfinite;
      } else {
        lane[i] += value * value;
      }
    }
    return nonfinite;
  }
  double total() const {
    double sums[kRedoVector];
    memcpy(sums, lane, sizeof sums);
    for (size_t half = kRedoVector / 2; half > 0; half /= 2) {
      for (size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
    }
    return sums[0];
  }
};

// The formula goes through floats, not through lanes: what stands in adam_math.h is what runs.
void adam_formula(const AdamConstants<float>& step, const ScalarLanes& grad, ScalarLanes& param,
                  ScalarLanes& exp_avg, ScalarLanes& exp_avg_sq) {
  for (size_t i = 0; i < kRedoVector; ++i) {
    optim::adam_formula<float>(step, grad.lane[i], param.lane[i], exp_avg.lane[i],
                               exp_avg_sq.lane[i]);
  }
}

}  // namespace

void adam_update_scalar(const UpdateSpan& span, const AdamStep& step, RedoRecord* redo,
                        uint64_t first_index) {
  update_typed<ScalarLanes>(span, step, redo, first_index);
}

size_t take_leaves_scalar(const GradientSpan& span, size_t at, size_t numel, double* leaves) {
  return take_typed<ScalarLanes, ScalarSquares>(span, at, numel, leaves);
}

}  // namespace elixir::optim
