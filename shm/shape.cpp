#include "shm/shape.h"

namespace elixir::shm {

Status check_shape(const Shape& shape) {
  if (static_cast<uint32_t>(shape.type) > static_cast<uint32_t>(ComputeType::kFp32)) {
    return error(Code::kProtocol, "unknown compute type {}", static_cast<uint32_t>(shape.type));
  }
  if (shape.ranks == 0 || shape.ranks > kMaxRanks) {
    return error(Code::kInvalidArgument, "{} ranks on a node; 1 to {} are possible", shape.ranks,
                 kMaxRanks);
  }
  if (shape.n_chunks == 0 || shape.n_chunks > kMaxChunks) {
    return error(Code::kInvalidArgument,
                 "{} chunks; 1 to {} are possible: choose another chunk length", shape.n_chunks,
                 kMaxChunks);
  }
  if (shape.chunk_numel == 0 || shape.chunk_numel % kAlignNumel != 0 ||
      shape.chunk_numel > kMaxChunkNumel) {
    return error(Code::kInvalidArgument,
                 "chunk length {}; it must be a multiple of {}, from {} to {}", shape.chunk_numel,
                 kAlignNumel, kAlignNumel, kMaxChunkNumel);
  }
  if (shape.n_chunks > kMaxJobNumel / shape.chunk_numel) {
    return error(Code::kResourceExhausted, "{} chunks of {} elements exceed the limit of {}",
                 shape.n_chunks, shape.chunk_numel, kMaxJobNumel);
  }
  return Status();
}

}  // namespace elixir::shm
