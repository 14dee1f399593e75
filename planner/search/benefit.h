#pragma once

// The closed forms from which the search starts.

#include <cstdint>

#include "planner/machine.h"
#include "planner/profile.h"
#include "shm/shape.h"

namespace elixir::planner {

inline constexpr double kAllocatedShare = 0.95;    // F_alloc: of what is left, what is used
inline constexpr double kActivationFactor = 1.25;  // F_frag: fragmentation of torch's allocator

// U_allowed = F_alloc * (capacity - U_buffer - F_frag * U_activation): bytes of one GPU for
// gathered chunks and states (Elixir, arXiv 2212.05339 v2, section 3); and never so much that less
// than the machine's overhead_bytes is left. 0 where nothing is left.
uint64_t allowed_bytes(const Machine& machine, const ModelProfile& profile);

// What a byte of every GPU's memory saves, in seconds times bytes of an element, for chunks of C
// elements: L_c bytes in the compute type, L_os F_os of states (12; with FP32 parameters, which are
// their own masters, 8).
//   I(n) = C (1/B_d2h + 1/B_h2d)                                           (Elixir v2, eq. 1)
//   J(n) = n/(L_c + L_os F_os) [L_os C/B_h2d + L_c I(n) + L_c C/B_d2h + C/V_c - C/V_g]    (eq. 2)
struct Benefits {
  double i = 0;  // of one more rCache block
  double j = 0;  // of one more chunk with states on the GPU
  bool rcache_first() const { return i >= j; }
};
Benefits benefits(const Machine& machine, uint64_t chunk_numel, uint32_t dtype_bytes);

// Every how many-th update the GPU takes over in Deep Optimizer States: k + 1 with
//   k = (3/B + 1/U_g) / (1/U_c + 1/D_c - 1/(2B))      (arXiv 2410.21316, eq. 1)
// B: FP32 elements a second over the link (its slower direction, bytes / 4); U: updates a second;
// D_c: conversion on the CPU, which elixird does in the update itself, so that 1/D_c = 0. 0: never,
// where the link takes longer than the CPU. Told, and compared with; this runtime's stride is that
// of swing_rates().
uint32_t equation_stride(const Machine& machine);

// How fast chunks swing beside elixird's own updates, all GPUs of the node together: a swing
// chunk's elements bring their images, which are parameter and states, up and down; and what that
// leaves of host memory, where its rate is known: an update there moves twice the image and
// shard_gradients() of the shape, a swing twice the image, and each of both a gradient and a
// parameter more. Of `shape`, its type, ranks and exchange.
struct SwingRates {
  double cpu_numel_s = 0;    // U_c: elixird's workers, as measured
  double swing_numel_s = 0;  // U_s = min(L_up, L_down, L_joint / 2) / an image; 0: none is of use
  // With which both are done at the same time: every stride-th chunk, 1 + U_c / U_s; 0: none.
  uint32_t stride = 0;
};
SwingRates swing_rates(const Machine& machine, const shm::Shape& shape);

}  // namespace elixir::planner
