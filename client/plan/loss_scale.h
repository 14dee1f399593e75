#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "client/plan/options.h"

namespace elixir {

// The factor that losses are multiplied by.
class LossScale {
 public:
  explicit LossScale(double constant) : scale_(constant) {}
  explicit LossScale(const DynamicLossScale& options)
      : options_(options), scale_(options.init_scale) {}

  bool dynamic() const { return options_.has_value(); }
  double value() const { return scale_; }
  // The number of steps since the last change, none of them skipped.
  uint32_t good_steps() const { return good_steps_; }
  // A dynamic scale continues from these values; a constant one stays.
  void restore(double value, uint32_t good_steps) {
    if (!options_) return;
    scale_ = value;
    good_steps_ = std::min(good_steps, options_->growth_interval - 1);
  }

  // Call it at the end of each step.
  void update(bool skipped) {
    if (!options_) return;
    if (skipped) {
      scale_ *= options_->backoff_factor;
      good_steps_ = 0;
    } else if (++good_steps_ == options_->growth_interval) {
      scale_ *= options_->growth_factor;
      good_steps_ = 0;
    }
  }

 private:
  std::optional<DynamicLossScale> options_;
  double scale_;
  uint32_t good_steps_ = 0;
};

}  // namespace elixir
