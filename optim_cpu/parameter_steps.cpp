#include "optim_cpu/parameter_steps.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace elixir::optim {

void ParameterSteps::begin(std::vector<AdamOptions> groups, uint64_t number, double grad_scale) {
  groups_ = std::move(groups);
  number_ = number;
  grad_scale_ = grad_scale;
  std::fill(constants_of_.begin(), constants_of_.end(), kNone);
  constants_.clear();
  known_.clear();
  last_.assign(groups_.size(), {});
}

void ParameterSteps::update(uint32_t parameter, uint32_t group) {
  ELIXIR_CHECK(parameter < updates_.size() && group < groups_.size(),
               "parameter {} of {}, group {} of {}", parameter, updates_.size(), group,
               groups_.size());
  const uint64_t count = ++updates_[parameter];
  Last& last = last_[group];
  if (last.count != count) {
    // Counts below 2^56: a step of a microsecond each for two thousand years.
    const auto [found, is_new] =
        known_.try_emplace(uint64_t{group} << 56 | count, static_cast<uint32_t>(constants_.size()));
    if (is_new) {
      constants_.push_back(make_adam_step(groups_[group], count, grad_scale_));
      constants_.back().step = number_;
    }
    last = {count, found->second};
  }
  constants_of_[parameter] = last.index;
}

void ParameterSteps::undo(uint32_t parameter) {
  ELIXIR_CHECK(parameter < updates_.size() && constants_of_[parameter] != kNone,
               "parameter {} of {} was not updated", parameter, updates_.size());
  --updates_[parameter];
  constants_of_[parameter] = kNone;
}

}  // namespace elixir::optim
