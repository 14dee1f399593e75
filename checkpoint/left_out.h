#pragma once

// A hash of the values of the parameters that a checkpoint leaves out.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"
#include "checkpoint/manifest.h"
#include "checkpoint/stored_folder.h"

namespace elixir::checkpoints {

// The sum of XXH3 hashes of pieces of kLeftOutNumel elements, each seeded with its parameter's name
// and its number. So pieces may come in any order and from any rank, with the chunks and shards of
// any plan. Every shard and every chunk begins at a multiple of kLeftOutNumel elements of a
// parameter.
inline constexpr uint64_t kLeftOutNumel = 64;

// The hash of elements [first, first + bytes.size() / element_bytes) of a parameter. REQUIRES:
// `first` is a multiple of kLeftOutNumel, and so is the end, unless the parameter ends there.
uint64_t left_out_hash(std::string_view parameter, uint64_t first, size_t element_bytes,
                       std::span<const std::byte> bytes);

// kBadInput if the folder was not saved beside the values that a run has. REQUIRES: the folder
// leaves some out. `here`: those that the folder leaves out, as the run has them.
Status check_left_out(const StoredFolder& folder, const LeftOut& here);

}  // namespace elixir::checkpoints
