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
  std::optional<uint64_t> host_memory_bytes = {};  // of a node: GPUs take what Elixir's lacks
  std::optional<uint64_t> gpu_memory_bytes = {};   // of a GPU
};

// kInvalidArgument with the limit: no parameters or more than kMaxParams, a largest parameter
// larger than the model, no GPUs or more than kMostGpus (kMostGpusPerNode).
Status check_request(const EstimateRequest& request);

// Without activations and buffers. With M parameters, N GPUs, n of them in a node, element L_c = 2
// (FP32: 4), states L_os F_os = 12 (master and two moments; FP32: 8):
//
//                    a GPU                            a node's host
//   ddp              (2 L_c + L_os F_os) M
//   zero1            2 L_c M + L_os F_os M/N
//   zero2            L_c M + (L_c + L_os F_os) M/N
//   zero3            (2 L_c + L_os F_os) M/N
//   zero2_offload    L_c M                            (L_c + L_os F_os) n M/N
//   zero3_offload    L_c times the largest parameter  (2 L_c + L_os F_os) n M/N
//   elixir           2 blocks of a chunk, 2 more      (2 L_c + states) n M/N
//                    (kGradBlocks) for gradients
//
// ZeRO (arXiv 1910.02054, figure 1: P_os, P_os+g, P_os+g+p); the offload rows in the accounting of
// Elixir (arXiv 2212.05339 v2, table 1), whose epsilon for ZeRO-3 is here the one parameter that is
// gathered (0 where its size is not known). Elixir's row has chunks as long as the largest
// parameter, since the operators that read it are not known (least_plan() finds the least where
// they are), and every state in host memory, where BF16 takes 10 bytes a parameter
// besides parameter and gradient (docs/design/data_path.md), FP16 12, FP32 8. With several
// GPUs that is with the collective exchange: the host exchange has a gradient of each of them. What
// a node's host lacks is on its GPUs, with gradients.
//
// M/N is rounded up. REQUIRES: check_request().
StateBytes state_bytes(StateStrategy strategy, const EstimateRequest& request);

// What Elixir's row uses: collectives, where there are several GPUs.
Exchange estimated_exchange(const EstimateRequest& request);

// Elements of the largest parameter of a GPT with so many in all, whose width is 128 times its
// number of layers (GPT-3: 12288 and 96) and whose vocabulary is 50257: of the token embedding or
// an MLP's matrix; never more than all.
uint64_t assumed_largest_param(uint64_t params);

inline constexpr uint64_t kMaxBatch = uint64_t{1} << 20;

// How much room is left with so many sequences (or tokens of one, or layers): what fits has 0 or
// more. It falls as they grow, the faster the more there are.
using RoomAt = std::function<Result<double>(uint64_t)>;

// The most that fit, at most `most`; 0: not one. Asks for as few as it can: each is a profile.
Result<uint64_t> largest_that_fits(const RoomAt& room, uint64_t most);

}  // namespace elixir::planner
