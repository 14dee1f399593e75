#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/simulate/simulate.h"
#include "planner/simulate/step_model.h"

namespace elixir::planner {

struct HomeCounts {
  uint32_t gpu = 0, cpu = 0, swing = 0;  // chunks
};

// Bytes by kind: of one GPU, and of the node's host memory.
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
  uint32_t gpus = 1;
  uint64_t tokens = 0;  // a step and GPU
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
  double predicted_tflops = 0;  // per GPU, in the paper's measure: 8 (checkpointed) or 6 M D / t
  PlanBytes bytes;
};

}  // namespace elixir::planner
