#pragma once

#include <cstdint>

namespace elixir::planner {

// How places become angles (Su et al., arXiv 2104.09864), and how a model reads longer sequences
// than it was first trained with. transformers' names: rope_type.
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
  double factor = 1;             // not of kDefault
  int64_t original_context = 0;  // of kDynamic, kYarn and kLlama3
  // kLlama3: a frequency that turns fewer than low_freq_factor times within original_context is
  // divided, one that turns more than high_freq_factor times is not; linear between them.
  double low_freq_factor = 0, high_freq_factor = 0;
  // kYarn: the same with beta_slow and beta_fast turns, linear in the frequency's number.
  // `truncate`: the ends are whole numbers. Cosines and sines are multiplied by `magnitude`.
  double beta_fast = 0, beta_slow = 0, magnitude = 1;
  bool truncate = true;

  bool operator==(const Rotary&) const = default;
};

}  // namespace elixir::planner
