#include "checkpoint/left_out.h"

#include <xxhash.h>

#include <algorithm>

#include "base/check.h"

namespace elixir::checkpoints {

uint64_t left_out_hash(std::string_view parameter, uint64_t first, size_t element_bytes,
                       std::span<const std::byte> bytes) {
  ELIXIR_CHECK(first % kLeftOutNumel == 0, "from element {} on", first);
  const uint64_t seed = XXH3_64bits(parameter.data(), parameter.size());
  uint64_t sum = 0;
  for (uint64_t piece = first / kLeftOutNumel; !bytes.empty(); ++piece) {
    const size_t taken = std::min<size_t>(bytes.size(), kLeftOutNumel * element_bytes);
    sum += XXH3_64bits_withSeed(bytes.data(), taken, seed + piece);
    bytes = bytes.subspan(taken);
  }
  return sum;
}

}  // namespace elixir::checkpoints
