#pragma once

#include <cstdint>

namespace elixir::shm {

inline constexpr uint32_t kMaxAccumulate = 65536;  // backward passes per step

// The rules for all steps of a job, the same on all its ranks for the whole run. Part of a message
// (messages.h).
struct StepRules {
  uint32_t accumulate = 1;  // backward passes per step
  // 1: a chunk is updated once its last gradient is published, 0: after the post.
  uint32_t immediate = 0;
  uint32_t norms = 0;  // 1: steps clip or check, so squares are summed as gradients arrive
  // 1: a chunk is updated into a spare slot once its last gradient is published. After the post
  // this slot becomes the chunk's slot, or the update is made again.
  uint32_t early = 0;

  // Whether every step has several backward passes. Then every gradient is summed, and memory for
  // the sums exists from the start.
  bool sums_all() const { return accumulate > 1; }

  // Whether elixird works on every chunk's gradients before the post. Then the trainer rings a
  // doorbell for each publication.
  bool rings_all() const { return opens_steps() || norms != 0; }

  // Whether ranks publish the hyperparameters of a step before its first gradient.
  bool opens_steps() const { return immediate != 0 || early != 0; }

  bool operator==(const StepRules&) const = default;
};
static_assert(sizeof(StepRules) == 16);

}  // namespace elixir::shm
