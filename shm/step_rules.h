#pragma once

#include <cstdint>

namespace elixir::shm {

inline constexpr uint32_t kMaxAccumulate = 65536;  // backward passes a step

// The rules for all steps of a job, the same on all its ranks for the whole run. Part of a message
// (messages.h).
struct StepRules {
  uint32_t accumulate = 1;  // backward passes a step
  // 1: a chunk is updated once its last gradient is published, 0: after the post.
  uint32_t immediate = 0;
  uint32_t norms = 0;  // 1: steps will clip or check: squares are summed up as gradients come in
  // 1: a chunk is updated once its last gradient is published, into a spare slot; after the post
  // the slot takes the place of the chunk's, or the update is made again.
  uint32_t early = 0;

  // Whether steps are known to have several backward passes: then every gradient is summed, and
  // memory for the sums is there from the start.
  bool sums_all() const { return accumulate > 1; }

  // Whether elixird has something to do with every chunk's gradients before the post: then each
  // publication has a doorbell.
  bool rings_all() const { return opens_steps() || norms != 0; }

  // Whether ranks say the hyperparameters of a step before its first gradient.
  bool opens_steps() const { return immediate != 0 || early != 0; }

  bool operator==(const StepRules&) const = default;
};
static_assert(sizeof(StepRules) == 16);

}  // namespace elixir::shm
