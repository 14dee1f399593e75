#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "tests/daemon/fake_job.h"
#include "tests/fuzz/fuzz_input.h"

namespace elixir::fuzz {

// Thrown when a schedule broke an invariant. (A bug that the product itself sees aborts:
// ELIXIR_CHECK.)
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

// A job, and the work of its ranks' scripts as long as nobody meddles.
struct JobSetup {
  // shape.ranks counts all ranks of the job; those from first_rank on are here
  testing::FakeModel model;
  uint32_t first_rank = 0;
  uint32_t local_ranks = 1;
  shm::StepRules rules;
  uint32_t rounds = 1;  // backward passes per step that count
  // Dropped passes before these, in every step: one number of passes per discard. The last pass
  // before each discard reaches only `dropped_chunks` chunks. With `dropped_uneven`, each rank
  // reaches one chunk more than the rank before.
  std::vector<uint32_t> dropped_rounds = {};
  uint32_t dropped_chunks = UINT32_MAX;
  bool dropped_uneven = false;
  uint32_t steps = 2;
  double clip_norm = 0;
  bool check_finite = false;
  // Updates can be counted: each exactly halves all parameters, which begin as 1.
  bool counts = false;

  JobNumbers* numbers = nullptr;  // shared by all jobs with this setup

  // Whether gradients of several passes are added up.
  bool sums() const {
    const bool several = std::any_of(dropped_rounds.begin(), dropped_rounds.end(),
                                     [](uint32_t passes) { return passes > 1; });
    return rules.accumulate > 1 || rounds > 1 || several;
  }
  bool collective() const { return model.shape.exchange == shm::Exchange::kCollective; }
  const shm::StepRecord& record(uint32_t step) const;
  // A rank's shm::GradGroup for a parameter. If the model leaves parameters out, only the first
  // rank says that parameter 1 has a gradient.
  uint8_t grad_group(uint32_t local_rank, uint32_t parameter, uint32_t step) const {
    const bool others_say = model.unused && parameter == 1 && local_rank > 0;
    return others_say ? shm::kNoGradient : model.grad_group(parameter, step);
  }
  // The gradient in the rank's slot: a whole chunk, or the rank's shard.
  const std::vector<std::byte>& gradient(uint32_t local_rank, uint32_t chunk, uint32_t step,
                                         uint32_t round) const;
  const std::vector<float>& initial(uint32_t chunk) const;  // also for frozen chunks
};

// Takes one shape of a table, so that memory can be used again, and any rules.
JobSetup take_setup(Input& input, bool counts);

// The states of one chunk after `step` steps of a job with which nobody meddles.
struct ChunkNumbers {
  std::vector<std::byte> param;
  std::vector<float> masters, exp_avg, exp_avg_sq;
};
const ChunkNumbers& reference_of(const JobSetup& setup, uint32_t step, uint32_t chunk);

}  // namespace elixir::fuzz
