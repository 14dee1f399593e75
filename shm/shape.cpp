#include "shm/shape.h"

namespace elixir::shm {

Status check_shape(const Shape& shape) {
  if (static_cast<uint32_t>(shape.type) > static_cast<uint32_t>(ComputeType::kFp32)) {
    return error(Code::kProtocol, "unknown compute type {}", static_cast<uint32_t>(shape.type));
  }
  if (static_cast<uint32_t>(shape.exchange) > static_cast<uint32_t>(Exchange::kCollective)) {
    return error(Code::kProtocol, "unknown exchange {}", static_cast<uint32_t>(shape.exchange));
  }
  if (shape.n_moments == 0 || shape.n_moments > kMaxMoments) {
    return error(Code::kProtocol, "{} moments; update rules have 1 to {}", shape.n_moments,
                 kMaxMoments);
  }
  if (shape.n_parameters > kMaxParameters) {
    return error(Code::kProtocol, "{} trained parameters; at most {} are possible",
                 shape.n_parameters, kMaxParameters);
  }
  const bool host = shape.exchange == Exchange::kHost;
  const uint32_t max_ranks = host ? kMaxLocalRanks : kMaxRanks;
  if (shape.ranks == 0 || shape.ranks > max_ranks) {
    return error(Code::kInvalidArgument, "{} ranks; 1 to {} are possible with the {} exchange",
                 shape.ranks, max_ranks, exchange_name(shape.exchange));
  }
  if (host && shape.ranks > 1 && shape.n_gpu_chunks > 0) {
    return error(Code::kInvalidArgument,
                 "{} chunks whose states lie on the GPU, {} ranks and the host exchange: use the "
                 "collective exchange, or keep all states in host memory",
                 shape.n_gpu_chunks, shape.ranks);
  }
  const uint64_t chunks = uint64_t{shape.n_chunks} + shape.n_gpu_chunks + shape.n_frozen_chunks;
  if (chunks == 0 || chunks > kMaxChunks) {
    return error(Code::kInvalidArgument,
                 "{} chunks; 1 to {} are possible: choose another chunk length", chunks,
                 kMaxChunks);
  }
  if (shape.chunk_numel == 0 || shape.chunk_numel % kAlignNumel != 0 ||
      shape.chunk_numel > kMaxChunkNumel) {
    return error(Code::kInvalidArgument,
                 "chunk length {}; it must be a multiple of {}, from {} to {}", shape.chunk_numel,
                 kAlignNumel, kAlignNumel, kMaxChunkNumel);
  }
  if (shape.n_swing_chunks > shape.n_chunks || shape.n_swing_lanes > kMaxSwingLanes ||
      (shape.n_swing_chunks > 0) != (shape.n_swing_lanes > 0) || shape.reserved != 0) {
    return error(
        Code::kInvalidArgument,
        "{} swing chunks in {} lanes, of {} chunks whose states elixird keeps (reserved is "
        "{}): 1 to {} lanes are possible, and none without swing chunks",
        shape.n_swing_chunks, shape.n_swing_lanes, shape.n_chunks, shape.reserved, kMaxSwingLanes);
  }
  if (shape.n_swing_chunks > 0 && host && shape.ranks > kMaxSwingRanks) {
    return error(
        Code::kInvalidArgument,
        "{} ranks with swing chunks and the host exchange; at most {} are possible: use the "
        "collective exchange (--exchange collective), or no swing chunks (--swing-stride 0)",
        shape.ranks, kMaxSwingRanks);
  }
  if (shape.n_spare_slots > shape.first_swing()) {
    return error(Code::kInvalidArgument,
                 "{} spare slots for {} chunks placed on the CPU: at most one for each is of use",
                 shape.n_spare_slots, shape.first_swing());
  }
  const uint64_t spare = uint64_t{shape.n_spare_slots} + shape.n_swing_lanes;
  if (chunks + spare > kMaxJobNumel / shape.chunk_numel) {
    return error(Code::kResourceExhausted, "{} chunks of {} elements exceed the limit of {}",
                 chunks, shape.chunk_numel, kMaxJobNumel);
  }
  return Status();
}

}  // namespace elixir::shm
