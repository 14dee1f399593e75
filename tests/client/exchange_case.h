#pragma once

// An exchange driven by hand, without a model. It has micro-steps of made-up gradients, gathers
// that wait for updates, and a scalar reference of the result. Ranks are threads, elixird is a real
// one.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/exchange/collective_group.h"
#include "shm/step_rules.h"
#include "tests/client/lazy_device.h"

namespace elixir::test {

struct ExchangeCase {
  uint32_t ranks = 1;
  uint32_t cpu_chunks = 4, gpu_chunks = 0, frozen_chunks = 1;
  uint32_t swing_chunks = 0;  // the last of cpu_chunks; each rank's SwingRunner updates them
  uint32_t spare_slots = 0;   // for rules.early
  uint32_t grad_blocks = 2;   // 0: gradients go directly into their slots
  shm::StepRules rules = {};
  std::vector<uint32_t> micro_steps = {1, 1, 1, 1};  // one number for each step
  bool uneven = false;       // chunks with odd numbers have one micro-step per step
  uint32_t discards_in = 0;  // in this step, other gradients come first and are discarded
  uint32_t discards = 1;     // this many times
  // Backward gathers each chunk before its gradients, in one order on all ranks, except in every
  // third step. A discarded backward pass is then an incomplete one.
  bool gathers_in_backward = false;
  // The last rank reaches the second micro-step that counts before the others discard their first
  // gradients. REQUIRES: it does not wait for other ranks before, so the step before had one
  // micro-step.
  bool one_ahead = false;
};

// Few and many of five chunks swing: with one micro-step, with sums, and with early updates of the
// other chunks.
std::vector<ExchangeCase> swing_cases(uint32_t ranks);

// A rank's group, for CollectiveExchange. The rank's own thread makes it.
struct RankGroup {
  virtual ~RankGroup() = default;
  virtual CollectiveGroup& group() = 0;
  virtual Status liveness() { return Status(); }  // for SessionOptions
};
using RankGroups = std::function<std::unique_ptr<RankGroup>(uint32_t rank)>;

struct ExchangeOutcome {
  std::vector<std::string> wrong;  // differences from the reference, on all ranks
  uint64_t compared = 0;           // compared elements
  uint64_t d2d_bytes = 0;          // rank 0's
  uint32_t gathers = 0;            // rank 0's
};

// Both run a case by HostExchange, or with `groups` by CollectiveExchange. REQUIRES: elixird's
// folder is in the environment (with_elixird.h). In run_lazily(), devices copy as late as possible,
// and their violations count as wrong. In run_at_once(), there is nothing to wait for.
ExchangeOutcome run_lazily(const ExchangeCase& of, const RankGroups& groups = {},
                           const LazyFaults& faults = {});
ExchangeOutcome run_at_once(const ExchangeCase& of, const RankGroups& groups = {});

}  // namespace elixir::test
