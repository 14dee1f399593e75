#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "tests/daemon/fake_job.h"
#include "tests/fuzz/fuzz_input.h"

namespace elixir::fuzz {

// An invariant that a schedule broke. (A bug that the product sees itself aborts: ELIXIR_CHECK.)
struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

#define ELIXIR_EXPECT(condition, ...)                                                              \
  do {                                                                                             \
    if (!(condition)) [[unlikely]] {                                                               \
      throw ::elixir::fuzz::Violation(fmt::format("{}: ", #condition) + fmt::format(__VA_ARGS__)); \
    }                                                                                              \
  } while (false)

struct JobNumbers;

// A job, and what its ranks' scripts do as long as nobody meddles.
struct JobSetup {
  testing::FakeModel model;  // shape.ranks are of the job; those from first_rank on are here
  uint32_t first_rank = 0;
  uint32_t local_ranks = 1;
  shm::StepRules rules;
  uint32_t rounds = 1;  // backward passes a step that count
  // Before these, in every step: passes that are dropped, so many before each discard. The last of
  // them comes to `dropped_chunks` chunks, on each rank to one more than on the rank before where
  // `dropped_uneven` says so.
  std::vector<uint32_t> dropped_rounds = {};
  uint32_t dropped_chunks = UINT32_MAX;
  bool dropped_uneven = false;
  uint32_t steps = 2;
  double clip_norm = 0;
  bool check_finite = false;
  // Updates can be counted: each halves all parameters, which begin as 1, exactly.
  bool counts = false;

  JobNumbers* numbers = nullptr;  // those of all jobs that are set up like this

  // Gradients of several passes are added up.
  bool sums() const {
    const bool several = std::any_of(dropped_rounds.begin(), dropped_rounds.end(),
                                     [](uint32_t passes) { return passes > 1; });
    return rules.accumulate > 1 || rounds > 1 || several;
  }
  bool collective() const { return model.shape.exchange == shm::Exchange::kCollective; }
  const shm::StepRecord& record(uint32_t step) const;
  // What a rank says of a parameter. Where parameters are left out, the first rank speaks for all
  // of another one.
  uint8_t grad_group(uint32_t local_rank, uint32_t parameter, uint32_t step) const {
    const bool others_say = model.unused && parameter == 1 && local_rank > 0;
    return others_say ? shm::kNoGradient : model.grad_group(parameter, step);
  }
  // Of the rank's slot: whole chunks, or its shard.
  const std::vector<std::byte>& gradient(uint32_t local_rank, uint32_t chunk, uint32_t step,
                                         uint32_t round) const;
  const std::vector<float>& initial(uint32_t chunk) const;  // frozen ones, too
};

// One of a table of shapes, so that memory can be used again, and any rules.
JobSetup take_setup(Input& input, bool counts);

// What a job that nobody meddles with arrives at after so many steps, of one chunk.
struct ChunkNumbers {
  std::vector<std::byte> param;
  std::vector<float> masters, exp_avg, exp_avg_sq;
};
const ChunkNumbers& reference_of(const JobSetup& setup, uint32_t step, uint32_t chunk);

}  // namespace elixir::fuzz
