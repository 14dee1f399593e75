#pragma once

// The closed forms from which the search starts.

#include <cstdint>

#include "planner/kept_regions.h"
#include "planner/machine.h"
#include "planner/profile.h"
#include "shm/shape.h"

namespace elixir::planner {

inline constexpr double kAllocatedShare = 0.95;  // F_alloc: the part of what is left that is used

// Activations with fragmentation: F_frag times as many, or ModelProfile::allocated_bytes.
double allocated_activations(const ModelProfile& profile);

// U_allowed = F_alloc * (capacity - U_buffer - F_frag * U_activation): bytes of one GPU for
// gathered chunks and states (Elixir, arXiv 2212.05339 v2, section 3). It always leaves at least
// the machine's overhead_bytes. 0 if nothing is left.
uint64_t allowed_bytes(const Machine& machine, const ModelProfile& profile);

// The time that a byte of every GPU's memory saves, in seconds times bytes of an element, for
// chunks of C elements. An element has L_c bytes in the compute type and L_os F_os bytes of states.
// These are 12, or 8 with FP32 parameters, which are their own masters.
//   I(n) = C (1/B_d2h + 1/B_h2d)                                           (Elixir v2, eq. 1)
//   J(n) = n/(L_c + L_os F_os) [L_os C/B_h2d + L_c I(n) + L_c C/B_d2h + C/V_c - C/V_g]    (eq. 2)
struct Benefits {
  double i = 0;  // one more rCache block
  double j = 0;  // one more chunk with states on the GPU
  bool rcache_first() const { return i >= j; }
};
Benefits benefits(const Machine& machine, uint64_t chunk_numel, uint32_t dtype_bytes);

// The stride of Deep Optimizer States: the GPU takes over every (k + 1)-th update, with
//   k = (3/B + 1/U_g) / (1/U_c + 1/D_c - 1/(2B))      (arXiv 2410.21316, eq. 1)
// B: FP32 elements per second over the link (its slower direction, bytes / 4). U: updates per
// second. D_c: conversion on the CPU, which elixird does in the update itself, so 1/D_c = 0.
// Returns 0 (never) if the link takes longer than the CPU, or if the stride is too long to be worth
// the memory. It is reported for comparison. This runtime's stride is that of swing_rates().
uint32_t equation_stride(const Machine& machine);

// How fast chunks swing beside elixird's own updates, for all GPUs of the node together. An
// element's image is its parameter and states. A swing brings it up and down, and takes what
// elixird's updates leave of host memory, if the rate of that is known. An update on the CPU moves
// twice the image and shard_gradients() of the shape. A swing moves twice the image. Both also move
// a gradient and a parameter. The shape gives type, ranks and exchange.
struct SwingRates {
  double cpu_numel_s = 0;    // U_c: elixird's workers, as measured
  double swing_numel_s = 0;  // U_s = min(L_up, L_down, L_joint / 2) / an image; 0: no use
  // With this stride both end at the same time: every stride-th chunk, 1 + U_c / U_s. 0: none.
  uint32_t stride = 0;
};
SwingRates swing_rates(const Machine& machine, const shm::Shape& shape);

}  // namespace elixir::planner
