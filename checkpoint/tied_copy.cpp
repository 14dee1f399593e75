#include "checkpoint/tied_copy.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

namespace elixir::checkpoints {
namespace {

constexpr uint64_t kBlockBytes = uint64_t{1} << 20;

Status read_part(const StoredFolder& folder, const StoredTensor& tensor, uint64_t at,
                 std::span<std::byte> to) {
  const Status read = read_bytes(folder.files[tensor.file].fd.get(), tensor.offset + at, to);
  if (read.ok()) return read;
  return error(read.code(), "{}: {}", folder.place_of(tensor), read.message());
}

}  // namespace

Status check_tied_copy(const StoredFolder& folder, const StoredTensor& projection,
                       const StoredTensor& embedding) {
  const uint64_t bytes = projection.end - projection.begin;
  bool same = projection.dtype == embedding.dtype && projection.shape == embedding.shape;
  std::vector<std::byte> here(std::min(bytes, kBlockBytes)), there(here.size());
  for (uint64_t at = 0; same && at < bytes; at += here.size()) {
    const uint64_t length = std::min<uint64_t>(here.size(), bytes - at);
    ELIXIR_RETURN_IF_ERROR(read_part(folder, projection, at, {here.data(), length}));
    ELIXIR_RETURN_IF_ERROR(read_part(folder, embedding, at, {there.data(), length}));
    same = std::memcmp(here.data(), there.data(), length) == 0;
  }
  if (same) return Status();
  return error(Code::kBadInput,
               "{}: the model does not have this parameter: '{:.100}' is used in its place (tied "
               "word embeddings), and the two differ",
               folder.place_of(projection), embedding.name);
}

}  // namespace elixir::checkpoints
