#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "tests/planner/gpt_profile.h"

namespace elixir::planner::testing {

// gpt_profile() with its operators' work, and with what its checkpointed regions could keep. Memory
// counts in boundaries: a region's input, of tokens x width elements. A region that keeps nothing
// holds one of them, one with its products 9 more, and all that backward reads are 16 more.
inline ModelProfile region_profile(const TransformerConfig& config, const GptStep& step = {}) {
  constexpr uint64_t kProducts = 9, kAll = 16, kTransient = 4;
  ModelProfile profile = gpt_profile(config, step);
  const uint64_t width = static_cast<uint64_t>(config.width);
  const uint64_t boundary = element_bytes(step.type) * profile.tokens * width;
  const auto n_steps = static_cast<uint32_t>(profile.steps.size());
  const auto work_of = [&](uint32_t i) {
    OperatorWork work;
    for (const uint32_t param : profile.steps[i]) {
      const uint64_t columns = profile.params[param].numel / width;
      if (columns > 1) work.products.push_back({1, profile.tokens, columns, width});
    }
    work.bytes = work.products.empty() ? 4.0 * static_cast<double>(boundary) : 0;
    work.kernels = 1;
    return work;
  };
  for (uint32_t i = 0; i < n_steps; ++i) {
    profile.step_work.push_back(work_of(i));
    if (i < profile.backward_begin) continue;
    const std::vector<MatrixProduct> once = profile.step_work[i].products;
    profile.step_work[i].add({.products = once});
  }
  const size_t layers = profile.checkpoint_regions.size() / 2;
  const uint64_t head = 14 * profile.tokens * static_cast<uint64_t>(config.vocabulary);
  profile.activation_curve.assign(n_steps, layers * boundary + head);
  for (size_t layer = 0; layer < layers; ++layer) {
    const OperatorRange forward = profile.checkpoint_regions[layer];
    const OperatorRange backward = profile.checkpoint_regions[2 * layers - 1 - layer];
    ProfiledRegion region{.forward = {.steps = forward, .begin_bytes = layer * boundary},
                          .backward = {.steps = backward, .begin_bytes = (layer + 1) * boundary}};
    region.bytes = {RegionBytes{boundary, kTransient * boundary, (kAll + 1) * boundary},
                    RegionBytes{(1 + kProducts) * boundary, (kTransient + kProducts) * boundary,
                                (kAll + 1 - kProducts) * boundary},
                    RegionBytes{(1 + kAll) * boundary, (1 + kAll) * boundary, 2 * boundary}};
    region.boundary_bytes = boundary;
    region.forward.after_bytes = (layer + 1) * boundary;
    region.backward.after_bytes = layer * boundary;
    // The second run is the first half of backward; nobody reads its last operator's result.
    const uint32_t count = forward.last - forward.first + 1;
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t at = backward.first + i;
      profile.step_work[at] = i + 1 < count ? work_of(forward.first + i) : OperatorWork();
      if (i + 1 == count) break;
      OperatorWork others = profile.step_work[at];
      others.products.clear();
      others.kernels = profile.step_work[at].products.empty() ? 1 : 0;
      OperatorWork products = profile.step_work[at];
      products.bytes = 0;
      products.kernels -= others.kernels;
      region.second_run.push_back({.step = at, .products = products, .others = others});
    }
    for (uint32_t i = forward.first; i <= forward.last; ++i) {
      profile.activation_curve[i] =
          region.forward.begin_bytes + region.bytes_of(Keep::kNothing).forward_peak;
    }
    for (uint32_t i = backward.first; i <= backward.last; ++i) {
      profile.activation_curve[i] =
          region.backward.begin_bytes + region.bytes_of(Keep::kNothing).backward_peak;
    }
    profile.regions.push_back(std::move(region));
  }
  for (const OperatorWork& work : profile.step_work) profile.step_flops.push_back(work.flops());
  profile.activation_bytes =
      *std::max_element(profile.activation_curve.begin(), profile.activation_curve.end());
  return profile;
}

}  // namespace elixir::planner::testing
