#pragma once

#include "planner/models/transformer_config.h"
#include "planner/profile.h"

namespace elixir::planner::testing {

struct GptStep {
  uint64_t batch = 4, seq = 1024;
  bool checkpointed = true;
  ComputeType type = ComputeType::kBf16;
};

// A step of a GPT-2 or OPT as a profile, written by hand: one operator for each weight with its
// bias, forward, then (recomputation and) backward. Activations follow Korthikanti et al. (arXiv
// 2205.05198, eq. 2, twice that in FP32). They omit attention's scores, which fused attention does
// not keep. Logits have 16 bits, their loss and gradient 32.
inline ModelProfile gpt_profile(const TransformerConfig& config, const GptStep& step = {}) {
  ModelProfile profile;
  profile.model = config.name;
  profile.tokens = step.batch * step.seq;
  profile.type = step.type;
  std::vector<std::vector<std::vector<uint32_t>>> layers(static_cast<size_t>(config.layers));
  std::vector<std::vector<uint32_t>> before, after;
  uint32_t tied = UINT32_MAX;
  int64_t layer = -1;
  for (const NamedShape& shape : transformer_parameters(config)) {
    const uint32_t index = static_cast<uint32_t>(profile.params.size());
    profile.params.push_back({shape.name, shape.numel(), shape.shared});
    if (shape.shared) tied = index;
    const size_t mark = std::min(shape.name.find(".h."), shape.name.find(".layers."));
    const bool in_layer = mark != std::string::npos;
    if (in_layer) layer = std::stoll(shape.name.substr(shape.name.find('.', mark + 1) + 1));
    auto& place = in_layer ? layers[static_cast<size_t>(layer)] : layer < 0 ? before : after;
    const bool bias = shape.name.ends_with("bias") && !place.empty();
    if (bias) {
      place.back().push_back(index);
    } else {
      place.push_back({index});
    }
  }
  if (tied != UINT32_MAX) after.push_back({tied});
  auto& steps = profile.steps;
  const auto append = [&](auto begin, auto end) { steps.insert(steps.end(), begin, end); };
  const auto region = [&](size_t first) {
    if (!step.checkpointed) return;
    profile.checkpoint_regions.push_back(
        {static_cast<uint32_t>(first), static_cast<uint32_t>(steps.size() - 1)});
  };
  append(before.begin(), before.end());
  for (const auto& one : layers) {
    const size_t first = steps.size();
    append(one.begin(), one.end());
    region(first);
  }
  append(after.begin(), after.end());
  profile.backward_begin = static_cast<uint32_t>(steps.size());
  append(after.rbegin(), after.rend());
  for (auto one = layers.rbegin(); one != layers.rend(); ++one) {
    const size_t first = steps.size();
    if (step.checkpointed) append(one->begin(), one->end());
    append(one->rbegin(), one->rend());
    region(first);
  }
  const uint64_t width = static_cast<uint64_t>(config.width);
  const uint64_t layer_bytes = 17 * element_bytes(step.type) * profile.tokens * width;
  const uint64_t kept_bytes =
      step.checkpointed ? element_bytes(step.type) * profile.tokens * width : layer_bytes;
  profile.activation_bytes = static_cast<uint64_t>(config.layers) * kept_bytes +
                             (step.checkpointed ? layer_bytes : 0) +
                             14 * profile.tokens * static_cast<uint64_t>(config.vocabulary);
  profile.buffer_bytes = 16 * profile.tokens;
  return profile;
}

}  // namespace elixir::planner::testing
