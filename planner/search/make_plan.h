#pragma once

#include <cstdint>
#include <optional>

#include "base/enum_names.h"
#include "base/status.h"
#include "planner/choices.h"
#include "planner/chunks/packing.h"
#include "planner/machine.h"
#include "planner/plan/plan.h"
#include "planner/profile.h"

namespace elixir::planner {

// kElixir: this project's runtime; the fastest of the configurations simulated. kPaper: what Elixir
// v2 (arXiv 2212.05339) chooses and how its runtime overlaps: the closed form's choice, updates
// after backward, one chunk of prefetch, and (which its table 7 suggests, docs/planner.md) blocks
// with room for gradients beside the parameters. kZero2Offload, kZero3Offload: all chunks gathered,
// or as few as operators need, all states on the CPU, nothing hidden, and an Adam that casts on its
// own (kCastingAdamShare).
enum class Policy : uint8_t { kElixir, kPaper, kZero2Offload, kZero3Offload };
inline constexpr EnumName<Policy> kPolicyNames[] = {{"elixir", Policy::kElixir},
                                                    {"paper", Policy::kPaper},
                                                    {"zero2-offload", Policy::kZero2Offload},
                                                    {"zero3-offload", Policy::kZero3Offload}};

// What is asked for; what is empty or 0 is chosen.
struct PlanRequest {
  Policy policy = Policy::kElixir;
  uint64_t tokens = 0;  // a step and GPU, where the profile does not say
  LayoutOptions layout = {};
  // Empty: early where host memory has room for spare slots and they gain enough, else deferred.
  std::optional<UpdateMode> update = {};
  uint32_t accumulate = 1;  // backward passes a step; above 1 their gradients are summed in FP32
  bool host_ahead = true;   // StepRuntime's: false where the CPU emulates the device
  // The device's copies are done at once (client/device): the host exchange needs no blocks for
  // gradients.
  bool copies_at_once = false;
  // Frozen parameters lie on the GPUs, in shards, as ZeRO has them; for comparisons.
  bool frozen_on_gpu = false;
};

// The share of copies that the paper's runtime hides, where the machine does not say. Fitted to
// Elixir v2, table 7: docs/planner.md.
inline constexpr double kPaperCopiesHidden = 0.25;
// The rate of a CPU Adam with separate casts, as a share of elixird's in one pass:
// bench/RESULTS.md, BF16, torch's fused AdamW.
inline constexpr double kCastingAdamShare = 0.6;
// As few spare slots are taken, none where updates need not be early, as make the step no longer
// than the shortest found by more than this share.
inline constexpr double kEarlyGain = 0.005;
// Swing chunks are taken where they make the step shorter by a greater share than this: their rates
// are less well known, and they take memory.
inline constexpr double kSwingGain = 0.03;
// Backward passes of a step that are simulated; each further one is taken to be as long as those.
inline constexpr uint32_t kMostMicroSteps = 4;

struct PlannedStep {
  Plan plan;
  Packing packing;
  StepModel step;                 // for a predicted trace
  uint64_t gpu_memory_bytes = 0;  // of one GPU, as the machine has it
};

// Chooses how to train: chunk length, rCache against states on the GPU, exchange. Of lengths that
// fit some are simulated, each with the choice of the closed forms (search/benefit.h) and its
// neighbours. The same input gives the same plan. kBadInput: check_profile()'s and
// check_machine()'s; kInvalidArgument: what was asked for contradicts itself; kResourceExhausted:
// nothing fits, with what is lacking, in bytes, and where.
Result<PlannedStep> make_plan(const ModelProfile& profile, const Machine& machine,
                              const PlanRequest& request);

// What takes least, and what it takes.
struct LeastCandidate {
  Candidate candidate;
  PlanBytes bytes;
  uint64_t chunk_numel = 0, long_numel = 0;  // Plan's; 0: nothing fits
};

// Whether there is a plan, and what the least one takes: of a length that takes least of a GPU with
// the fewest blocks and chunks there, and of the exchange that then takes least of a node; where
// none fits, of the one that lacks least. Nothing is simulated, and rates do not matter.
struct LeastPlan : LeastCandidate {
  // Left on a GPU beside it; less than 0: what a GPU lacks or, where it does not, a node's host.
  double room_bytes = 0;
  uint64_t gpu_short_bytes = 0, host_short_bytes = 0;
  Status refusal;  // make_plan()'s; OK where there is a plan

  bool fits() const { return refusal.ok(); }
};
// Errors as make_plan()'s, but for kResourceExhausted, which is `refusal`.
Result<LeastPlan> least_plan(const ModelProfile& profile, const Machine& machine,
                             const PlanRequest& request);

}  // namespace elixir::planner
