#pragma once

// Low-rank adapters (LoRA, arXiv 2106.09685) in a profile that has none.

#include <cstdint>
#include <string>

#include "base/status.h"
#include "planner/profile.h"

namespace elixir::planner {

// Each weight W of [out, in] whose name `names` finds gets A of [rank, in] and B of [out, rank].
// The output is y = W x + B A x. `names` is a POSIX extended expression.
struct Adapters {
  uint32_t rank = 0;
  std::string names = kAttentionProjections;

  // Queries and values, as PEFT's default for most families; GPT-2 has both in c_attn.
  static constexpr char kAttentionProjections[] = "(q_proj|v_proj|c_attn)[.]weight$";
};

// "16" or "16,REGEX". Returns kInvalidArgument for a rank below 1 or above 65,536, and for what is
// no expression.
Result<Adapters> adapters_from_text(const std::string& text);

// The profile of the same step with these adapters, and everything else frozen. Products that give
// gradients of frozen weights are left out, and those of A and B come in. Activations stay as they
// are, which is a few more than are needed. Returns kInvalidArgument if no weight is found, or if
// the profile does not describe operators.
Result<ModelProfile> with_adapters(ModelProfile profile, const Adapters& adapters);

}  // namespace elixir::planner
