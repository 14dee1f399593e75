#pragma once

// Which parameters a checkpoint leaves out, as a hash of their values.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace elixir::checkpoints {

// The sum of XXH3 hashes of pieces of kLeftOutNumel elements, each seeded with its parameter's name
// and number: pieces may come in any order, from any rank, whatever the plan's chunks and shards.
// Every shard and every chunk begins at a multiple of kLeftOutNumel elements of a parameter.
inline constexpr uint64_t kLeftOutNumel = 64;

// Elements [first, first + bytes.size() / element_bytes) of a parameter. REQUIRES: `first` is a
// multiple of kLeftOutNumel, and so is the end, but that of the parameter.
uint64_t left_out_hash(std::string_view parameter, uint64_t first, size_t element_bytes,
                       std::span<const std::byte> bytes);

}  // namespace elixir::checkpoints
