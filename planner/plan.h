#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "planner/simulate/simulate.h"
#include "planner/simulate/step_model.h"

namespace elixir::planner {

struct HomeCounts {
  uint32_t gpu = 0, cpu = 0, swing = 0;  // chunks
};

// Bytes by kind: of one GPU, and of a node's host memory.
struct PlanBytes {
  uint64_t gpu_rcache = 0;       // gathered chunks
  uint64_t gpu_grad_blocks = 0;  // in which gradients come together or are fetched
  uint64_t gpu_states = 0;       // of chunks of home gpu
  uint64_t gpu_swing = 0;        // the states of one swing chunk on their way
  uint64_t gpu_activations = 0;
  uint64_t gpu_buffers = 0;
  uint64_t host_params = 0, host_grads = 0, host_states = 0;

  uint64_t gpu() const;
  uint64_t host() const;
};

// How a model is trained on a machine: what the search found, and what it will be like.
struct Plan {
  std::string model;
  uint64_t numel = 0;         // parameters; 0: not known (a plan file of an earlier release)
  uint64_t frozen_numel = 0;  // of them, not trained
  uint32_t gpus = 1;
  uint32_t nodes = 1;
  uint32_t accumulate = 1;  // backward passes a step
  uint64_t tokens = 0;      // a pass and GPU
  bool checkpointed = false;
  uint32_t dtype_bytes = 2;
  uint64_t chunk_numel = 0;
  uint32_t n_chunks = 0;
  double waste_ratio = 0;  // elements that hold no parameter, as a share of those that do
  uint32_t rcache_blocks = 0;
  HomeCounts homes;
  Exchange exchange = Exchange::kHost;
  // Every stride-th update on the GPU: of the swing chunks or, without any, what Deep Optimizer
  // States' eq. 1 would choose; 0: none.
  uint32_t stride = 0;
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
  double immediate_step_s = 0;    // with update immediate in deferred's place; 0: not simulated
  uint32_t scaled_from_gpus = 0;  // Machine's
  bool assumed_g2g = false;       // Machine's
  bool assumed_fp32 = false;      // FP32 at the matrix rate of 16 bits: its own was not known
  PlanBytes bytes;
};

// Of all GPUs together, as predicted.
double tokens_a_second(const Plan& plan);

}  // namespace elixir::planner
