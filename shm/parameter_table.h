#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "shm/shape.h"

namespace elixir::shm {

// The place of a parameter: elements [offset, offset + numel) of a chunk. One that is longer than a
// chunk begins with `chunk` and continues through the chunks behind it, as many as it takes. These
// are all placed on the CPU, all on the GPU or all frozen, and hold nothing else: the rest of the
// last one is padding.
struct ParameterPlace {
  std::string name;
  uint32_t chunk = 0;
  uint64_t offset = 0;
  uint64_t numel = 0;

  bool operator==(const ParameterPlace&) const = default;
};

// The chunks [first, first + count) that hold a parameter.
struct ChunkRun {
  uint32_t first = 0, count = 0;

  uint32_t end() const { return first + count; }
  bool contains(uint32_t chunk) const { return chunk >= first && chunk < end(); }
};

// One chunk's part of a parameter: elements [first, first + numel) of the parameter, from `offset`
// of the chunk on.
struct ParameterPart {
  uint64_t first = 0, offset = 0, numel = 0;
};

inline bool is_long(const ParameterPlace& place, const Shape& shape) {
  return place.numel > shape.chunk_numel;
}
// REQUIRES: the place is possible, as decode_table() finds.
ChunkRun chunks_of(const ParameterPlace& place, const Shape& shape);
// The chunks that hold its elements [first, first + numel). REQUIRES: it has these, numel > 0.
ChunkRun chunks_of(const ParameterPlace& place, const Shape& shape, uint64_t first, uint64_t numel);
// REQUIRES: the chunk is one of chunks_of().
ParameterPart part_in(const ParameterPlace& place, const Shape& shape, uint32_t chunk);
// Its elements [first, first + numel) that are in the chunk. REQUIRES: the chunk holds some.
ParameterPart part_in(const ParameterPlace& place, const Shape& shape, uint32_t chunk,
                      uint64_t first, uint64_t numel);

inline constexpr uint32_t kMaxNameBytes = 1024;
inline constexpr uint64_t kMaxTableBytes = 256ull << 20;

// All parameters of a job, as they travel in a memfd from the trainer to elixird: a u32 count,
// then for each u32 chunk, u64 offset, u64 numel, u32 name length, the name. Little endian, packed.
// Those that are trained come first.
std::vector<std::byte> encode_table(std::span<const ParameterPlace> places);

// Decodes hostile bytes. kProtocol: truncated, beyond a limit, outside the chunks of `shape`,
// misaligned, overlapping, with a name twice or empty, with trained parameters other than the first
// Shape::n_parameters, or with one longer than a chunk that does not lie as ParameterPlace says.
Result<std::vector<ParameterPlace>> decode_table(std::span<const std::byte> bytes,
                                                 const Shape& shape);

uint64_t table_xxh64(std::span<const std::byte> bytes);

// The most bytes of such a job's table, because parameters begin at multiples of kAlignNumel.
uint64_t most_table_bytes(const Shape& shape);

// The trainer's side: a memfd with the encoded table. The daemon's side: reads it with pread, which
// unlike a mapping cannot be made to fault by a peer that truncates the file.
Result<UniqueFd> write_table_fd(std::span<const std::byte> bytes);
Result<std::vector<std::byte>> read_table_fd(int fd, uint64_t bytes);

// The sum of numel: parameters of the model, without padding.
uint64_t total_numel(std::span<const ParameterPlace> places);

}  // namespace elixir::shm
