#pragma once

#include <cstdint>

namespace elixir::planner {

// How positions become angles (Su et al., arXiv 2104.09864), and how a model reads longer sequences
// than those of its first training. transformers calls this rope_type.
enum class RotaryKind : uint8_t {
  kDefault,
  kLinear,   // all frequencies are divided by `factor`
  kDynamic,  // the base grows with sequences longer than original_context
  kYarn,     // low frequencies are divided: Peng et al., arXiv 2309.00071
  kLlama3,   // low frequencies are divided: Llama 3.1, arXiv 2407.21783
};

struct Rotary {
  RotaryKind kind = RotaryKind::kDefault;
  double base = 10000;           // rope_theta
  double share = 1;              // of a head's width, from its begin, that is rotated
  double factor = 1;             // unused by kDefault
  int64_t original_context = 0;  // for kDynamic, kYarn and kLlama3
  // kLlama3: a frequency is divided if it turns fewer than low_freq_factor times within
  // original_context. It is kept if it turns more than high_freq_factor times. Between these it
  // changes linearly.
  double low_freq_factor = 0, high_freq_factor = 0;
  // kYarn: likewise with beta_slow and beta_fast turns, but linear in the frequency's number.
  // `truncate`: the ends are whole numbers. Cosines and sines are multiplied by `magnitude`.
  double beta_fast = 0, beta_slow = 0, magnitude = 1;
  bool truncate = true;

  bool operator==(const Rotary&) const = default;
};

}  // namespace elixir::planner
