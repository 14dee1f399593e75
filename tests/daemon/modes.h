#pragma once

#include <string>
#include <vector>

#include "optim_cpu/verdict.h"
#include "tests/daemon/fake_job.h"

namespace elixir::testing {

// What becomes of a job's steps.
struct Verdicts {
  const char* name = "all applied";
  bool norms = false;    // announced: squares are taken before the post
  double clip_norm = 0;  // of every other step; trainers add squares of their own then
  bool checks_finite = false;
  uint32_t poison_step = 0;  // FakeModel's
};

// How a job updates its chunks. With several rounds a step, some steps have one more, or fewer.
struct Mode {
  const char* name = "";
  uint32_t accumulate = 1;  // declared rounds
  bool undeclared = false;  // several rounds, and one was declared
  bool drops = false;       // gradients that are published first are dropped
  bool immediate = false;
  uint32_t spare_slots = 0;                    // with some updates are early
  uint32_t swing_chunks = 0, swing_lanes = 0;  // at most all chunks
  bool collective = false;                     // this node has all ranks but the first
  Verdicts verdicts = {};
};

enum class Layout {
  kPlain,         // five chunks
  kGroups,        // three groups, and parameters without a gradient in some steps
  kLarge,         // four chunks, so that others can act while they are updated
  kEmptyShards,   // the last ranks have none
  kThreeChunks,   // the longest parameter takes three; two groups, as above
  kElevenChunks,  // eleven
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

// Of all modes and verdicts with all types, numbers of ranks and layouts, 60 cases of each, every
// `share`th.
std::vector<Training> trainings(uint32_t share);

// Makes steps. After each the job has what the scalar reference has: every bit, the verdict, and
// what is said of the update. Before its post, unless updates are immediate, nothing is seen of it.
void expect_reference_bits(FakeJob& job, const Training& training);

// All ranks were told so of the step.
void expect_verdict(FakeJob& job, uint32_t step, const optim::Verdict& verdict, uint64_t applied);

}  // namespace elixir::testing
