#pragma once

#include <cstdint>

namespace elixir::planner {

// Bytes of model states by kind, on one GPU and in the host memory of the node with the most GPUs.
struct StateBytes {
  uint64_t gpu_params = 0, gpu_grads = 0, gpu_states = 0;
  uint64_t gpu_rcache = 0;       // Elixir's: gathered chunks
  uint64_t gpu_grad_blocks = 0;  // Elixir's: blocks in which gradients come together or are fetched
  uint64_t host_params = 0, host_grads = 0, host_states = 0;
  // Elixir's: gradients that wait for their turn in a reduction, page-locked by trainers.
  uint64_t host_waiting = 0;
  uint64_t host_activations = 0;  // Elixir's: what regions have sent, page-locked by trainers

  uint64_t gpu() const {
    return gpu_params + gpu_grads + gpu_states + gpu_rcache + gpu_grad_blocks;
  }
  uint64_t host() const {
    return host_params + host_grads + host_states + host_waiting + host_activations;
  }
};

}  // namespace elixir::planner
