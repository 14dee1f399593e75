#pragma once

#include <string>
#include <vector>

#include "optim_cpu/verdict.h"
#include "tests/daemon/fake_job.h"

namespace elixir::testing {

// The verdicts of a job's steps.
struct Verdicts {
  const char* name = "all applied";
  bool norms = false;    // announced: squares are taken before the post
  double clip_norm = 0;  // clips every other step; trainers then add their own squares
  bool checks_finite = false;
  uint32_t poison_step = 0;  // as in FakeModel
};

// How a job updates its chunks. With several rounds per step, some steps have one round more or
// fewer.
struct Mode {
  const char* name = "";
  uint32_t accumulate = 1;  // declared rounds
  bool undeclared = false;  // several rounds, but one was declared
  bool drops = false;       // the gradients published first are dropped
  bool immediate = false;
  uint32_t spare_slots = 0;                    // above 0: updates are early
  uint32_t swing_chunks = 0, swing_lanes = 0;  // at most all chunks
  bool collective = false;                     // this node has all ranks except the first
  Verdicts verdicts = {};
};

enum class Layout {
  kPlain,        // five chunks
  kGroups,       // three groups, and parameters without a gradient in some steps
  kLarge,        // four chunks, so that others can act while they are updated
  kEmptyShards,  // the last ranks have empty shards
  kThreeChunks,  // the longest parameter takes three chunks; two groups, as above
  kElevenChunks,
};

struct Training {
  Mode mode;
  ComputeType type = ComputeType::kBf16;
  uint32_t ranks = 2;
  Layout layout = Layout::kPlain;

  std::string name() const;
  FakeModel model() const;
  FakeJob::Options options() const;
  shm::StepRecord record(uint32_t step) const;
};

// Every `share`-th of all trainings. Each pair of mode and verdict has 60 cases: all types, numbers
// of ranks and layouts.
std::vector<Training> trainings(uint32_t share);

// Makes steps. After each step the job equals the scalar reference: every bit, the verdict, and the
// reported update. Nothing of a step is visible before its post, unless updates are immediate.
void expect_reference_bits(FakeJob& job, const Training& training);

// Expects that all ranks got this verdict for the step.
void expect_verdict(FakeJob& job, uint32_t step, const optim::Verdict& verdict, uint64_t applied);

}  // namespace elixir::testing
