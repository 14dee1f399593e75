#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/compute_type.h"
#include "planner/simulate/simulate.h"
#include "planner/simulate/step_model.h"
#include "planner/state_bytes.h"

namespace elixir::planner {

// How many chunks of trained parameters keep their states where; swing: in host memory, and
// through the GPU for each update.
struct PlacementCounts {
  uint32_t gpu = 0, cpu = 0, swing = 0;
};

// What was found of swing chunks.
struct SwingFound {
  // Why there are none, where nobody asked for that.
  //   kNoChunk   none of those on the host would: too few, or parts of longer parameters
  //   kRanks     more ranks than the host exchange has swing chunks for (shm::kMaxSwingRanks)
  //   kSlowLink  the link, or host memory, would take longer than the CPU
  //   kNoMemory  for their buffers, or their slots
  //   kNoGain    less than kSwingGain (search/make_plan.h)
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
  uint32_t stride = 0;   // the best that was simulated; 0: none was
  double step_s = 0;     // with it
  double without_s = 0;  // and without
};

// One configuration that may be run: what the search varies at one chunk length.
struct Candidate {
  uint32_t rcache_blocks = 0;
  uint32_t long_blocks = 0;  // of Plan::long_numel elements each
  uint32_t gpu_chunks = 0;   // the first ones in the order of use
  uint32_t stride = 0;       // every stride-th of the others swings; 0: none
  Exchange exchange = Exchange::kHost;
  uint32_t spare_slots = 0;  // so many chunks of a step may be updated early

  bool operator==(const Candidate&) const = default;
};

struct PlannedParameter {
  std::string name;
  bool own_chunk = false;  // used in several places of forward: it shares its chunk with none
};

// Bytes by kind: of one GPU, and of a node's host memory. gpu_states are all that lives there of
// the chunks whose states do.
struct PlanBytes : StateBytes {
  uint64_t gpu_swing = 0;  // of swing chunks, on their way
  uint64_t gpu_activations = 0;
  uint64_t gpu_buffers = 0;

  uint64_t gpu() const { return StateBytes::gpu() + gpu_swing + gpu_activations + gpu_buffers; }
};

// How a model is trained on a machine: what the search found, and what it will be like.
struct Plan {
  std::string model;
  std::vector<PlannedParameter> order = {};  // of first use: in which parameters go into chunks
  uint64_t numel = 0;         // parameters; 0: not known (a plan file of an earlier release)
  uint64_t frozen_numel = 0;  // of them, not trained
  uint32_t gpus = 1;
  uint32_t nodes = 1;
  UpdateMode update = UpdateMode::kDeferred;
  uint32_t accumulate = 1;  // backward passes a step
  uint64_t tokens = 0;      // a pass and GPU
  bool checkpointed = false;
  ComputeType type = ComputeType::kBf16;
  uint64_t chunk_numel = 0;
  uint64_t long_numel = 0;  // of the longest run of chunks that hold one parameter; 0: none does
  uint32_t n_chunks = 0;
  double waste_ratio = 0;  // elements that hold no parameter, as a share of those that do
  Candidate chosen;
  PlacementCounts placement;
  uint32_t equation_stride = 0;  // what Deep Optimizer States' eq. 1 would choose; 0: none
  SwingFound swing;
  uint64_t u_allowed_bytes = 0;
  double benefit_i = 0, benefit_j = 0;  // Elixir v2, eq. 1 and 2, as search/benefit.h has them
  bool rcache_first = true;
  StepTimes predicted;
  // Of one GPU: the profile's operations over the step; of the paper's and ZeRO's policies in the
  // paper's measure, 8 (checkpointed) or 6 M D / t.
  double predicted_tflops = 0;
  // Model FLOPs utilisation: operations without recomputation, three times forward's, as a share of
  // what the machine's matrix rate would do in a step (Chowdhery et al., arXiv 2204.02311, appendix
  // B).
  double predicted_mfu = 0;
  std::array<double, kLegs.size()> gains_s = {};  // by Leg: saved if it were twice as fast
  Leg binding = Leg::kCompute;                    // with which most is saved
  double immediate_step_s = 0;    // with update immediate in its place; 0: not simulated
  uint32_t scaled_from_gpus = 0;  // Machine's
  bool assumed_g2g = false;       // Machine's
  bool assumed_fp32 = false;      // FP32 at the matrix rate of 16 bits: its own was not known
  PlanBytes bytes;
  uint64_t spare_bytes = 0;  // of them, in host memory for the spare slots
};

// Of all GPUs together, as predicted.
double tokens_a_second(const Plan& plan);

}  // namespace elixir::planner
