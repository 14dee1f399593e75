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

// The place of a parameter: elements [offset, offset + numel) of a chunk. A parameter that is
// longer than a chunk begins in `chunk` and continues through the chunks behind it. These chunks
// hold nothing else, and the rest of the last one is padding. They are all placed on the CPU, all
// on the GPU or all frozen.
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

// One chunk's part of a parameter: its elements [first, first + numel), which lie from `offset` of
// the chunk on.
struct ParameterPart {
  uint64_t first = 0, offset = 0, numel = 0;
};

inline bool is_long(const ParameterPlace& place, const Shape& shape) {
  return place.numel > shape.chunk_numel;
}
// REQUIRES: decode_table() accepts the place.
ChunkRun chunks_of(const ParameterPlace& place, const Shape& shape);
// The chunks that hold its elements [first, first + numel). REQUIRES: the parameter has these
// elements, and numel > 0.
ChunkRun chunks_of(const ParameterPlace& place, const Shape& shape, uint64_t first, uint64_t numel);
// REQUIRES: the chunk is one of chunks_of().
ParameterPart part_in(const ParameterPlace& place, const Shape& shape, uint32_t chunk);
// The part of the parameter's elements [first, first + numel) that lies in the chunk. REQUIRES: the
// chunk holds some of them.
ParameterPart part_in(const ParameterPlace& place, const Shape& shape, uint32_t chunk,
                      uint64_t first, uint64_t numel);

inline constexpr uint32_t kMaxNameBytes = 1024;
inline constexpr uint64_t kMaxTableBytes = 256ull << 20;

// Encodes all parameters of a job. The bytes travel in a memfd from the trainer to elixird: a u32
// count, then for each parameter u32 chunk, u64 offset, u64 numel, u32 name length, the name.
// Little endian, packed. Trained parameters come first.
std::vector<std::byte> encode_table(std::span<const ParameterPlace> places);

// Decodes hostile bytes. kProtocol: the table is truncated or beyond a limit; a place is outside
// the chunks of `shape`, misaligned or overlaps another one; a name is empty or comes twice. Also
// if the trained parameters are not the first Shape::n_parameters, or if a parameter longer than a
// chunk does not lie as ParameterPlace says.
Result<std::vector<ParameterPlace>> decode_table(std::span<const std::byte> bytes,
                                                 const Shape& shape);

uint64_t table_xxh64(std::span<const std::byte> bytes);

// The most bytes that the table of such a job can have. There is a limit because parameters begin
// at multiples of kAlignNumel.
uint64_t most_table_bytes(const Shape& shape);

// The trainer writes the encoded table into a memfd, and elixird reads it with pread. A peer that
// truncates the file can make a mapping fault, but not pread.
Result<UniqueFd> write_table_fd(std::span<const std::byte> bytes);
Result<std::vector<std::byte>> read_table_fd(int fd, uint64_t bytes);

// The sum of numel: the model's parameters, without padding.
uint64_t total_numel(std::span<const ParameterPlace> places);

}  // namespace elixir::shm
