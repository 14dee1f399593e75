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

// The runtime to plan for.
// - kElixir: this project's runtime, with the fastest of the simulated configurations.
// - kPaper: the choices and the overlap of Elixir v2 (arXiv 2212.05339). It has the closed form's
//   choice, updates after backward, and one chunk of prefetch. Blocks have room for gradients
//   beside the parameters, as its table 7 suggests (docs/planner.md).
// - kZero2Offload, kZero3Offload: all chunks gathered, or as few as operators need. All states are
//   on the CPU, nothing is hidden, and Adam casts on its own (kCastingAdamShare).
enum class Policy : uint8_t { kElixir, kPaper, kZero2Offload, kZero3Offload };
inline constexpr EnumName<Policy> kPolicyNames[] = {{"elixir", Policy::kElixir},
                                                    {"paper", Policy::kPaper},
                                                    {"zero2-offload", Policy::kZero2Offload},
                                                    {"zero3-offload", Policy::kZero3Offload}};

// A request for a plan. The planner chooses members that are empty or 0.
struct PlanRequest {
  Policy policy = Policy::kElixir;
  uint64_t tokens = 0;  // per step and GPU, if the profile does not say
  LayoutOptions layout = {};
  // Empty: early if host memory has room for spare slots and they gain enough, else deferred.
  std::optional<UpdateMode> update = {};
  uint32_t accumulate = 1;  // backward passes per step; gradients of several are summed in FP32
  // kAuto: what makes the step shortest (kRegionGain in search/region_choice.h). kKeep and
  // kProducts need ModelProfile::regions, unless the profile has no checkpointed region. The other
  // policies' regions keep nothing.
  Activations regions = {};
  bool host_ahead = true;  // as in StepRuntime; false if the CPU emulates the device
  // The device's copies are done at once (client/device), so the host exchange needs no blocks for
  // gradients.
  bool copies_at_once = false;
  // Frozen parameters lie on the GPUs, in shards, as in ZeRO. For comparisons.
  bool frozen_on_gpu = false;
};

// The share of copies that the paper's runtime hides, if the machine does not say. Fitted to Elixir
// v2, table 7: docs/planner.md.
inline constexpr double kPaperCopiesHidden = 0.25;
// The rate of a CPU Adam with separate casts, as a share of elixird's in one pass:
// bench/RESULTS.md, BF16, torch's fused AdamW.
inline constexpr double kCastingAdamShare = 0.6;
// Spare slots take much host memory, and are taken if they make the step shorter by at least this
// share, or if early updates are asked for.
inline constexpr double kEarlyGain = 0.03;
// If they are, the search takes the fewest whose step is at most this share longer than the
// shortest step found.
inline constexpr double kFewerSlotsLoss = 0.005;
// Swing chunks are taken if they make the step shorter by at least this share. Their rates are less
// well known, and they take memory.
inline constexpr double kSwingGain = 0.03;
// At most this many backward passes of a step are simulated. Each further one is assumed to take as
// long.
inline constexpr uint32_t kMostMicroSteps = 4;

struct PlannedStep {
  Plan plan;
  Packing packing;
  StepModel step;                 // for a predicted trace
  uint64_t gpu_memory_bytes = 0;  // per GPU, as in the machine
};

// Chooses how to train: chunk length, the GPU's memory for the rCache and for states, and exchange.
// It simulates some of the lengths that fit, each with the choice of the closed forms
// (search/benefit.h) and its neighbours. Equal input gives an equal plan. Returns the kBadInput
// errors of check_profile() and check_machine(). Returns kInvalidArgument if the request
// contradicts itself. Returns kResourceExhausted if nothing fits, with the missing bytes and where
// they are missing.
Result<PlannedStep> make_plan(const ModelProfile& profile, const Machine& machine,
                              const PlanRequest& request);

// The candidate that takes least, and the memory that it takes.
struct LeastCandidate {
  Candidate candidate;
  PlanBytes bytes;
  uint64_t chunk_numel = 0, long_numel = 0;  // as in Plan; 0: nothing fits
};

// Whether there is a plan, and the memory of the least one. Its length takes least of a GPU with
// the fewest blocks and chunks there, and its exchange then takes least of a node. If nothing fits,
// it is the one with the fewest missing bytes. Nothing is simulated, and rates do not matter.
struct LeastPlan : LeastCandidate {
  // Bytes left on a GPU. Below 0: the bytes missing on a GPU or, if the GPU holds it, in a node's
  // host memory.
  double room_bytes = 0;
  uint64_t gpu_short_bytes = 0, host_short_bytes = 0;
  bool sends = false;  // regions send inputs to host memory
  Status refusal;      // make_plan()'s error; OK if there is a plan

  bool fits() const { return refusal.ok(); }
};
// Returns make_plan()'s errors, except that kResourceExhausted is in `LeastPlan::refusal`.
Result<LeastPlan> least_plan(const ModelProfile& profile, const Machine& machine,
                             const PlanRequest& request);

}  // namespace elixir::planner
