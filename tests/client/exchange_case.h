#pragma once

// An exchange driven by hand, without a model: micro-steps of made-up gradients, gathers that have
// to wait for updates, and a scalar reference of what must come of it. Ranks are threads, elixird
// is a real one.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/device/device.h"
#include "client/exchange/exchange.h"
#include "client/session/session.h"
#include "shm/shape.h"

namespace elixir::test {

struct ExchangeCase {
  uint32_t ranks = 1;
  uint32_t cpu_chunks = 4, gpu_chunks = 0, frozen_chunks = 1;
  uint32_t grad_blocks = 2;  // 0: gradients go straight into their slots
  shm::StepRules rules = {};
  std::vector<uint32_t> micro_steps = {1, 1, 1, 1};  // of each step
  bool uneven = false;       // chunks of odd numbers have one micro-step a step
  uint32_t discards_in = 0;  // before the gradients of this step others come and are discarded
  uint32_t discards = 1;     // so often
  // The last rank is at the second micro-step that counts before the others discard their first
  // gradients. REQUIRES: it waits for nobody before, so the step before had one micro-step.
  bool one_ahead = false;
};

// How a rank exchanges; without one, by HostExchange.
class RankExchange {
 public:
  virtual ~RankExchange() = default;
  virtual std::function<Status()> liveness() = 0;  // SessionOptions'
  virtual std::unique_ptr<Exchange> make(Session& session, Device& device, const ExchangeCase& of,
                                         const std::vector<shm::ParameterPlace>& places) = 0;
};
using RankExchanges = std::function<std::unique_ptr<RankExchange>(uint32_t rank)>;

struct ExchangeOutcome {
  std::vector<std::string> wrong;  // what differs from the reference, of all ranks
  uint64_t compared = 0;           // elements that were looked at
  uint64_t d2d_bytes = 0;          // of rank 0
  uint32_t gathers = 0;            // of rank 0
};

// REQUIRES: elixird's folder is in the environment (with_elixird.h). Every rank has a device of its
// own, which lives as long as `devices`.
ExchangeOutcome run_exchange(const ExchangeCase& of,
                             const std::vector<std::unique_ptr<Device>>& devices,
                             const RankExchanges& collective = {});

}  // namespace elixir::test
