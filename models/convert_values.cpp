// Of models/convert.h: values that nobody can train with.

#include <algorithm>

#include "checkpoint/value_check.h"
#include "models/convert.h"

namespace elixir {

Status check_stored_values(const checkpoints::StoredFolder& folder,
                           const checkpoints::StoredTensor& tensor, ComputeType kept_as) {
  const ValueFormat format = checkpoints::format_of(tensor);
  if (format == ValueFormat::kNone) return Status();
  const uint64_t bytes = tensor.end - tensor.begin;
  std::vector<std::byte> block(std::min(bytes, kConvertBlockNumel * tensor.dtype->bytes));
  ValueCounts counts;
  for (uint64_t first = 0; first < bytes; first += block.size()) {
    const std::span<std::byte> part(block.data(), std::min<uint64_t>(block.size(), bytes - first));
    const Status read = read_exact(folder.files[tensor.file].fd.get(), tensor.offset + first, part);
    if (!read.ok()) {
      return error(read.code(), "{}: {}", folder.place_of(tensor), read.message());
    }
    counts += count_values(format, part, kept_as);
  }
  return checkpoints::check_counts(folder.path, tensor.name, counts, kept_as);
}

}  // namespace elixir
