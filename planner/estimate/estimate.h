#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>

#include "base/compute_type.h"
#include "base/status.h"
#include "planner/machine.h"
#include "planner/profile.h"
#include "planner/simulate/step_model.h"
#include "planner/state_bytes.h"

namespace elixir::planner {

// How model states (parameters, gradients, optimizer states) are spread over GPUs and hosts.
enum class StateStrategy { kDdp, kZero1, kZero2, kZero3, kZero2Offload, kZero3Offload, kElixir };

inline constexpr std::array kStateStrategies = {
    StateStrategy::kDdp,    StateStrategy::kZero1,        StateStrategy::kZero2,
    StateStrategy::kZero3,  StateStrategy::kZero2Offload, StateStrategy::kZero3Offload,
    StateStrategy::kElixir,
};

// "ddp", "zero1", "zero2", "zero3", "zero2_offload", "zero3_offload", "elixir"
const char* strategy_name(StateStrategy strategy);

inline constexpr uint64_t kMaxParams = 1'000'000'000'000'000;  // 1e15
// Elixir's fewest rCache blocks: an operator reads parameters of two chunks, seldom of more.
inline constexpr uint64_t kFewestBlocks = 2;

// A model and the GPUs that share it by data parallelism.
struct EstimateRequest {
  uint64_t params = 0;
  uint64_t largest_param = 0;  // elements of the largest parameter; 0: assumed_largest_param()
  uint32_t gpus = 1;
  uint32_t gpus_per_node = 1;
  ComputeType type = ComputeType::kBf16;
  std::optional<uint64_t> host_memory_bytes = {};  // per node; Elixir keeps the rest on GPUs
  std::optional<uint64_t> gpu_memory_bytes = {};   // per GPU
};

// Returns kInvalidArgument, with the limit, if there are no parameters or more than kMaxParams, or
// if the largest one is larger than the model. Also if there are no GPUs, or more than kMostGpus
// (kMostGpusPerNode).
Status check_request(const EstimateRequest& request);

// The bytes without activations and buffers. There are M parameters and N GPUs, n of them per node.
// An element has L_c = 2 bytes (FP32: 4) and its states L_os F_os = 12 (master and two moments;
// FP32: 8).
//
//                    per GPU                          per node's host
//   ddp              (2 L_c + L_os F_os) M
//   zero1            2 L_c M + L_os F_os M/N
//   zero2            L_c M + (L_c + L_os F_os) M/N
//   zero3            (2 L_c + L_os F_os) M/N
//   zero2_offload    L_c M                            (L_c + L_os F_os) n M/N
//   zero3_offload    L_c times the largest parameter  (2 L_c + L_os F_os) n M/N
//   elixir           2 blocks of a chunk, 2 more      (2 L_c + states) n M/N
//                    (kGradBlocks) for gradients
//
// The first rows follow ZeRO (arXiv 1910.02054, figure 1: P_os, P_os+g, P_os+g+p). The offload rows
// follow the accounting of Elixir (arXiv 2212.05339 v2, table 1). Its epsilon for ZeRO-3 is here
// the one parameter that is gathered (0 if its size is not known).
//
// Elixir's row has chunks as long as the largest parameter, because the operators that read it are
// not known. If they are, least_plan() finds the least. The row keeps every state in host memory.
// BF16 takes 10 bytes per parameter there, besides parameter and gradient
// (docs/design/data_path.md). FP16 takes 12 and FP32 8. With several GPUs it uses the collective
// exchange: the host exchange would have a gradient for each GPU. If a node's host memory is too
// small, its GPUs hold the rest, with gradients.
//
// M/N is rounded up. REQUIRES: check_request() is OK.
StateBytes state_bytes(StateStrategy strategy, const EstimateRequest& request);

// The exchange of Elixir's row: collective if there are several GPUs.
Exchange estimated_exchange(const EstimateRequest& request);

// Elements of the largest parameter of a GPT with `params` parameters: the token embedding or an
// MLP's matrix. The GPT's width is 128 times its number of layers (GPT-3: 12288 and 96), and its
// vocabulary is 50257. The result never exceeds `params`.
uint64_t assumed_largest_param(uint64_t params);

inline constexpr uint64_t kMaxBatch = uint64_t{1} << 20;

// The room that is left with this many sequences (or tokens per sequence, or layers). 0 or more: it
// fits. The room falls as the number grows, and falls ever faster.
using RoomAt = std::function<Result<double>(uint64_t)>;

// The greatest number that fits, at most `most`; 0: not even one. It calls `room` as rarely as it
// can, because each call makes a profile.
Result<uint64_t> largest_that_fits(const RoomAt& room, uint64_t most);

}  // namespace elixir::planner
