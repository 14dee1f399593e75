#include "daemon/save_run.h"

#include <xxhash.h>

#include <algorithm>
#include <climits>

#include "base/check.h"

namespace elixir::daemon {

uint64_t Run::bytes() const {
  uint64_t sum = 0;
  for (const Values& part : parts) sum += part.bytes.size();
  return sum;
}

void Run::append(std::span<const std::byte> part, ValueFormat format) {
  if (!part.empty()) parts.push_back({part, format});
}

std::vector<Values> take_front(std::vector<Values>& parts, size_t* next, uint64_t bytes) {
  ELIXIR_CHECK(*next <= parts.size(), "part {} of {}", *next, parts.size());
  std::vector<Values> front;
  while (bytes > 0 && *next < parts.size() && front.size() < IOV_MAX) {
    Values& part = parts[*next];
    const size_t taken = std::min<uint64_t>(part.bytes.size(), bytes);
    front.push_back({part.bytes.first(taken), part.format});
    part.bytes = part.bytes.subspan(taken);
    bytes -= taken;
    if (part.bytes.empty()) ++*next;
  }
  return front;
}

// A block is counted while the processor's cache has it from the hash.
uint64_t hash_and_count(const Values& values, XXH3_state_s* hash) {
  constexpr size_t kBlockBytes = 256 << 10;
  uint64_t not_finite = 0;
  for (size_t at = 0; at < values.bytes.size(); at += kBlockBytes) {
    const auto block = values.bytes.subspan(at, std::min(kBlockBytes, values.bytes.size() - at));
    XXH3_64bits_update(hash, block.data(), block.size());
    not_finite += count_values(values.format, block).not_finite;
  }
  return not_finite;
}

iovec vector_of(const Values& values) {
  return {const_cast<std::byte*>(values.bytes.data()), values.bytes.size()};
}

}  // namespace elixir::daemon
