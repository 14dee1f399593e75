#include "optim_cpu/parameter_steps.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace elixir::optim {

ParameterSteps::ParameterSteps(uint32_t n_parameters, uint32_t most_groups)
    : updates_(n_parameters, 0), constants_of_(n_parameters, kNone) {
  groups_.reserve(most_groups);
  last_.reserve(most_groups);
  constants_.reserve(n_parameters);
  known_.reserve(n_parameters);
  spare_.reserve(n_parameters);
  for (uint32_t i = 0; i < n_parameters; ++i) known_.emplace(i, 0);  // begin() makes them spare
}

void ParameterSteps::begin(const std::vector<AdamOptions>& groups, uint64_t number,
                           double grad_scale) {
  groups_ = groups;
  number_ = number;
  grad_scale_ = grad_scale;
  std::fill(constants_of_.begin(), constants_of_.end(), kNone);
  constants_.clear();
  spare_.reserve(known_.size() + spare_.size());
  while (!known_.empty()) spare_.push_back(known_.extract(known_.begin()));
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
    const uint64_t key = uint64_t{group} << 56 | count;
    auto found = known_.find(key);
    if (found == known_.end()) {
      found = know(key, static_cast<uint32_t>(constants_.size()));
      constants_.push_back(make_adam_step(groups_[group], count, grad_scale_));
      constants_.back().step = number_;
    }
    last = {count, found->second};
  }
  constants_of_[parameter] = last.index;
}

ParameterSteps::Known::iterator ParameterSteps::know(uint64_t key, uint32_t index) {
  if (spare_.empty()) return known_.emplace(key, index).first;
  Known::node_type node = std::move(spare_.back());
  spare_.pop_back();
  node.key() = key;
  node.mapped() = index;
  return known_.insert(std::move(node)).position;
}

void ParameterSteps::undo(uint32_t parameter) {
  ELIXIR_CHECK(parameter < updates_.size() && constants_of_[parameter] != kNone,
               "parameter {} of {} was not updated", parameter, updates_.size());
  --updates_[parameter];
  constants_of_[parameter] = kNone;
}

}  // namespace elixir::optim
