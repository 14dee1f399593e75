#pragma once

// An exchange driven by hand, without a model: micro-steps of made-up gradients, gathers that have
// to wait for updates, and a scalar reference of what must come of it. Ranks are threads, elixird
// is a real one.

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
  uint32_t swing_chunks = 0;  // of cpu_chunks, the last; a SwingRunner a rank updates them
  uint32_t spare_slots = 0;   // for rules.early
  uint32_t grad_blocks = 2;   // 0: gradients go straight into their slots
  shm::StepRules rules = {};
  std::vector<uint32_t> micro_steps = {1, 1, 1, 1};  // of each step
  bool uneven = false;       // chunks of odd numbers have one micro-step a step
  uint32_t discards_in = 0;  // before the gradients of this step others come and are discarded
  uint32_t discards = 1;     // so often
  // Backward gathers each chunk before its gradients, in one order on all ranks, but in every third
  // step. What is discarded is then a backward pass that has not come to the end.
  bool gathers_in_backward = false;
  // The last rank is at the second micro-step that counts before the others discard their first
  // gradients. REQUIRES: it waits for nobody before, so the step before had one micro-step.
  bool one_ahead = false;
};

// Few and many of five chunks swing: with one micro-step, with sums, and with early updates of the
// other chunks.
std::vector<ExchangeCase> swing_cases(uint32_t ranks);

// A rank's group, for CollectiveExchange. Made by the rank's own thread.
struct RankGroup {
  virtual ~RankGroup() = default;
  virtual CollectiveGroup& group() = 0;
  virtual Status liveness() { return Status(); }  // SessionOptions'
};
using RankGroups = std::function<std::unique_ptr<RankGroup>(uint32_t rank)>;

struct ExchangeOutcome {
  std::vector<std::string> wrong;  // what differs from the reference, of all ranks
  uint64_t compared = 0;           // elements that were looked at
  uint64_t d2d_bytes = 0;          // of rank 0
  uint32_t gathers = 0;            // of rank 0
};

// By HostExchange, or, with `groups`, by CollectiveExchange. REQUIRES: elixird's folder is in the
// environment (with_elixird.h). Over devices whose copies are as late as they may be (and what they
// call wrong is wrong), or that have none to wait for.
ExchangeOutcome run_lazily(const ExchangeCase& of, const RankGroups& groups = {},
                           const LazyFaults& faults = {});
ExchangeOutcome run_at_once(const ExchangeCase& of, const RankGroups& groups = {});

}  // namespace elixir::test
