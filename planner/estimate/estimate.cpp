#include "planner/estimate/estimate.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/units.h"
#include "planner/chunks/packing.h"
#include "planner/search/benefit.h"

namespace elixir::planner {
namespace {

constexpr uint64_t kMomentBytes = 2 * sizeof(float);

// ZeRO's optimizer states: a master beside a 16-bit parameter, and two moments.
uint64_t zero_state_bytes(ComputeType type) {
  return kMomentBytes + (type == ComputeType::kFp32 ? 0 : sizeof(float));
}

// Elixir's: what completes the parameter to the master, and two moments.
uint64_t elixir_state_bytes(ComputeType type) { return kMomentBytes + master_bytes(type); }

uint64_t node_gpus(const EstimateRequest& request) {
  return std::min(request.gpus, request.gpus_per_node);
}

uint64_t shard_numel(const EstimateRequest& request) {
  return (request.params + request.gpus - 1) / request.gpus;
}

// Elements whose states a node holds.
uint64_t node_numel(const EstimateRequest& request) {
  return std::min(request.params, shard_numel(request) * node_gpus(request));
}

StateBytes elixir_bytes(const EstimateRequest& request) {
  const uint64_t element = element_bytes(request.type);
  const uint64_t largest =
      request.largest_param > 0 ? request.largest_param : assumed_largest_param(request.params);
  const uint64_t block_bytes = round_up(largest, kAlignNumel) * element;
  StateBytes bytes{.gpu_rcache = kFewestBlocks * block_bytes,
                   .gpu_grad_blocks = kGradBlocks * block_bytes};
  uint64_t numel = node_numel(request);
  const uint64_t host_bytes = 2 * element + elixir_state_bytes(request.type);
  if (request.host_memory_bytes) {
    const uint64_t held =
        std::min(numel, usable_host_bytes(*request.host_memory_bytes) / host_bytes);
    const uint64_t gpus = node_gpus(request);
    bytes.gpu_states =
        (numel - held + gpus - 1) / gpus * (2 * element + elixir_state_bytes(request.type));
    numel = held;
  }
  bytes.host_params = element * numel;
  bytes.host_grads = element * numel;
  bytes.host_states = elixir_state_bytes(request.type) * numel;
  return bytes;
}

}  // namespace

const char* strategy_name(StateStrategy strategy) {
  constexpr const char* kNames[] = {"ddp",           "zero1",         "zero2", "zero3",
                                    "zero2_offload", "zero3_offload", "elixir"};
  return kNames[static_cast<size_t>(strategy)];
}

Status check_request(const EstimateRequest& request) {
  if (request.params == 0 || request.params > kMaxParams) {
    return error(Code::kInvalidArgument,
                 "{} parameters: an estimate needs at least 1 and at most 1e15 of them",
                 request.params);
  }
  if (request.largest_param > request.params) {
    return error(Code::kInvalidArgument,
                 "the largest parameter has {} elements, more than the model's {}",
                 request.largest_param, request.params);
  }
  if (request.gpus == 0 || request.gpus > kMostGpus) {
    return error(Code::kInvalidArgument, "{} GPUs: say from 1 to {} (--gpus)", request.gpus,
                 kMostGpus);
  }
  if (request.gpus_per_node == 0 || request.gpus_per_node > kMostGpusPerNode) {
    return error(Code::kInvalidArgument, "{} GPUs in a node: say from 1 to {} (--gpus-per-node)",
                 request.gpus_per_node, kMostGpusPerNode);
  }
  return Status();
}

StateBytes state_bytes(StateStrategy strategy, const EstimateRequest& request) {
  ELIXIR_CHECK(check_request(request).ok(), "{}", check_request(request).message());
  const uint64_t element = element_bytes(request.type);
  const uint64_t states = zero_state_bytes(request.type);
  const uint64_t whole = request.params;
  const uint64_t shard = shard_numel(request);
  const uint64_t node = node_numel(request);
  switch (strategy) {
    case StateStrategy::kDdp:
      return {.gpu_params = element * whole,
              .gpu_grads = element * whole,
              .gpu_states = states * whole};
    case StateStrategy::kZero1:
      return {.gpu_params = element * whole,
              .gpu_grads = element * whole,
              .gpu_states = states * shard};
    case StateStrategy::kZero2:
      return {.gpu_params = element * whole,
              .gpu_grads = element * shard,
              .gpu_states = states * shard};
    case StateStrategy::kZero3:
      return {.gpu_params = element * shard,
              .gpu_grads = element * shard,
              .gpu_states = states * shard};
    case StateStrategy::kZero2Offload:
      return {.gpu_params = element * whole,
              .host_grads = element * node,
              .host_states = states * node};
    case StateStrategy::kZero3Offload:
      return {.gpu_params = element * request.largest_param,
              .host_params = element * node,
              .host_grads = element * node,
              .host_states = states * node};
    case StateStrategy::kElixir:
      return elixir_bytes(request);
  }
  return {};
}

Exchange estimated_exchange(const EstimateRequest& request) {
  return request.gpus == 1 ? Exchange::kHost : Exchange::kCollective;
}

uint64_t assumed_largest_param(uint64_t params) {
  constexpr double kWidthPerLayer = 128;
  constexpr double kVocabulary = 50257;
  // 12 w^2 elements a layer, w / 128 layers.
  const double width = std::cbrt(static_cast<double>(params) * kWidthPerLayer / 12);
  const double largest = std::max(kVocabulary * width, 4 * width * width);
  return std::min(params, static_cast<uint64_t>(largest));
}

Result<uint64_t> largest_that_fits(const RoomAt& room, uint64_t most) {
  struct Point {
    uint64_t count = 0;
    double room = 0;
  };
  // Where the line through both meets 0.
  const auto meets = [](const Point& a, const Point& b) {
    const double slope = (a.room - b.room) / static_cast<double>(b.count - a.count);
    return slope > 0 ? static_cast<double>(a.count) + a.room / slope : 1e300;
  };
  Result<double> first = room(1);
  if (!first.ok()) return first.status();
  if (*first < 0) return 0;
  // Upwards, to where the line would end: beyond it nothing fits, since room falls ever faster.
  Point before{0, 0}, held{1, *first}, refused{0, 0};
  while (refused.count == 0) {
    if (held.count == most) return most;
    const double end = before.count == 0 ? 2 : meets(before, held) + 1;
    const auto next = static_cast<uint64_t>(std::clamp(end, static_cast<double>(held.count + 1),
                                                       64.0 * static_cast<double>(held.count)));
    const Point point{std::min(next, most), 0};
    const Result<double> left = room(point.count);
    if (!left.ok()) return left.status();
    if (*left < 0) {
      refused = {point.count, *left};
    } else {
      before = held;
      held = {point.count, *left};
    }
  }
  // Between the two, by the line through them and, where that gains little, by halves.
  for (bool halve = false; refused.count - held.count > 1; halve = !halve) {
    const double end =
        halve ? 0.5 * static_cast<double>(held.count + refused.count) : meets(held, refused);
    const uint64_t next = std::clamp(static_cast<uint64_t>(end), held.count + 1, refused.count - 1);
    const Result<double> left = room(next);
    if (!left.ok()) return left.status();
    (*left < 0 ? refused : held) = {next, *left};
  }
  return held.count;
}

}  // namespace elixir::planner
