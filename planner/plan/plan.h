#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/compute_type.h"
#include "base/region_plan.h"
#include "planner/compute_parts.h"
#include "planner/simulate/simulate.h"
#include "planner/simulate/step_model.h"
#include "planner/state_bytes.h"

namespace elixir::planner {

// The number of trained chunks by the place of their states. swing: in host memory, and through the
// GPU for each update.
struct PlacementCounts {
  uint32_t gpu = 0, cpu = 0, swing = 0;
};

// What the search found about swing chunks.
struct SwingFound {
  // Why there are none, although nobody asked for that.
  // - kNoChunk: no chunk on the host can swing: there are too few, or they are parts of longer
  //   parameters
  // - kRanks: more ranks than the host exchange has swing chunks for (shm::kMaxSwingRanks)
  // - kSlowLink: the link, or host memory, would take longer than the CPU
  // - kNoMemory: no memory for their buffers, or their slots
  // - kNoGain: less than kSwingGain (search/make_plan.h)
  enum class Why : uint8_t {
    kTaken,
    kNotAsked,
    kNoChunk,
    kRanks,
    kSlowLink,
    kNoMemory,
    kNoGain,
    kImmediate
  };
  Why why = Why::kNotAsked;
  uint32_t stride = 0;   // the best one simulated; 0: none was
  double step_s = 0;     // a step with it
  double without_s = 0;  // a step without swing chunks
};

// One configuration that can run: the choices that the search varies at one chunk length.
struct Candidate {
  uint32_t rcache_blocks = 0;
  uint32_t long_blocks = 0;  // each of Plan::long_numel elements
  uint32_t gpu_chunks = 0;   // the first ones in the order of use
  uint32_t stride = 0;       // every stride-th of the others swings; 0: none
  Exchange exchange = Exchange::kHost;
  uint32_t spare_slots = 0;  // at most this many chunks of a step are updated early

  bool operator==(const Candidate&) const = default;
};

struct PlannedParameter {
  std::string name;
  bool own_chunk = false;  // used in several places of forward: it has a chunk to itself
};

// Bytes by kind, per GPU and per node's host memory. gpu_states is everything of the chunks whose
// states are on the GPU.
struct PlanBytes : StateBytes {
  uint64_t gpu_swing = 0;  // buffers of swing chunks under way
  uint64_t gpu_activations = 0;
  uint64_t gpu_buffers = 0;

  uint64_t gpu() const { return StateBytes::gpu() + gpu_swing + gpu_activations + gpu_buffers; }
};

// How a model is trained on a machine: the search's choices and its predictions.
struct Plan {
  std::string model;
  std::vector<PlannedParameter> order = {};  // by first use, as they are packed
  uint64_t numel = 0;         // parameters; 0: not known (a plan file of an earlier release)
  uint64_t frozen_numel = 0;  // those that are not trained
  uint32_t gpus = 1;
  uint32_t nodes = 1;
  UpdateMode update = UpdateMode::kDeferred;
  uint32_t accumulate = 1;  // backward passes per step
  uint64_t tokens = 0;      // per pass and GPU
  bool checkpointed = false;
  RegionPlan region_plan = {};  // for a pass; no region: none is checkpointed, or it is not known
  uint64_t kept_bytes = 0;      // part of bytes.gpu_activations: what regions keep beside inputs
  ComputeType type = ComputeType::kBf16;
  uint64_t chunk_numel = 0;
  uint64_t long_numel = 0;  // the longest run of chunks with one parameter; 0: none
  uint32_t n_chunks = 0;
  double waste_ratio = 0;  // elements that hold no parameter, as a share of those that do
  Candidate chosen;
  PlacementCounts placement;
  uint32_t equation_stride = 0;  // by Deep Optimizer States' eq. 1; 0: none
  SwingFound swing;
  uint64_t u_allowed_bytes = 0;
  double benefit_i = 0, benefit_j = 0;  // Elixir v2, eq. 1 and 2, as in search/benefit.h
  bool rcache_first = true;
  StepTimes predicted;
  std::optional<ComputeParts> compute;  // a pass on one GPU; empty: operators are not described
  // TFLOP/s of one GPU: the profile's operations over the step. The paper's and ZeRO's policies use
  // the paper's measure: 8 (checkpointed) or 6 M D / t.
  double predicted_tflops = 0;
  // Model FLOPs utilisation (Chowdhery et al., arXiv 2204.02311, appendix B): operations without
  // recomputation, three times forward's, as a share of peak_tflops() over a step.
  double predicted_mfu = 0;
  std::array<double, kLegs.size()> gains_s = {};  // by Leg: seconds saved if twice as fast
  Leg binding = Leg::kCompute;                    // the leg that saves most
  double immediate_step_s = 0;  // with immediate updates instead; 0: not simulated
  // With spare slots, which gain too little to be taken (kEarlyGain in search/make_plan.h). 0: they
  // are taken, gain nothing or are not possible.
  double early_step_s = 0;
  uint32_t scaled_from_gpus = 0;  // Machine's
  bool assumed_g2g = false;       // Machine's
  bool assumed_fp32 = false;      // FP32 at the matrix rate of 16 bits: its own is not known
  PlanBytes bytes;
  uint64_t spare_bytes = 0;     // part of `bytes`: spare slots, in host memory
  uint64_t capacity_bytes = 0;  // a GPU's memory; 0: not known (a plan file of an earlier release)
  // The activations' bytes over a step: ModelProfile::activation_curve in at most kMostCurvePoints
  // points, each the greatest of those that it stands for. Empty: not known.
  std::vector<uint64_t> curve_bytes = {};
  // The machine file with the measured rates that the plan rests on, if a training by it may
  // correct them (client/probe/first_probe.h). "" in a plan that was read from a file.
  std::string measured_rates = "";
};
inline constexpr size_t kMostCurvePoints = 256;

// A curve in at most `most` points, each the greatest of those that it stands for.
std::vector<uint64_t> thinned_curve(const std::vector<uint64_t>& curve, size_t most);

// The prediction for all GPUs together.
double tokens_a_second(const Plan& plan);

}  // namespace elixir::planner
