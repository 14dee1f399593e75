// The parameter table that a trainer sends in a memfd, for a shape that the first bytes choose.

#include <vector>

#include "shm/parameter_table.h"
#include "tests/fuzz/fuzz_input.h"

namespace elixir::fuzz {
namespace {

// Elements [begin, end) of a chunk that belong to a place: all of the chunk, where the parameter is
// longer than one. Independent of shm::chunks_of().
struct Taken {
  uint32_t chunk;
  uint64_t begin, end;
};

std::vector<Taken> taken_by(const shm::ParameterPlace& place, const shm::Shape& shape) {
  if (place.numel <= shape.chunk_numel) {
    return {{place.chunk, place.offset, place.offset + place.numel}};
  }
  std::vector<Taken> taken;
  uint32_t chunk = place.chunk;
  for (uint64_t done = 0; done < place.numel; done += shape.chunk_numel) {
    taken.push_back({chunk++, 0, shape.chunk_numel});
  }
  return taken;
}

int home_of(uint32_t chunk, const shm::Shape& shape) {
  return chunk < shape.n_chunks ? 0 : chunk < shape.n_chunks + shape.n_gpu_chunks ? 1 : 2;
}

// Independent of the decoder's own way of looking for overlaps.
void check_places(const std::vector<shm::ParameterPlace>& places, const shm::Shape& shape) {
  for (const shm::ParameterPlace& place : places) {
    ELIXIR_CHECK(place.chunk < shape.total_chunks(), "chunk {}", place.chunk);
    ELIXIR_CHECK(place.numel > 0 && place.offset < shape.chunk_numel &&
                     (place.offset == 0 || place.numel <= shape.chunk_numel - place.offset),
                 "[{}, +{}) is outside", place.offset, place.numel);
    const std::vector<Taken> taken = taken_by(place, shape);
    for (const Taken& one : taken) {
      ELIXIR_CHECK(one.chunk < shape.total_chunks() &&
                       home_of(one.chunk, shape) == home_of(place.chunk, shape),
                   "'{}' goes on in chunk {}", place.name, one.chunk);
    }
    const shm::ChunkRun run = shm::chunks_of(place, shape);
    ELIXIR_CHECK(run.first == place.chunk && run.count == taken.size(), "'{}' takes {} chunks, {}",
                 place.name, taken.size(), run.count);
    ELIXIR_CHECK(place.offset % shm::kAlignNumel == 0, "offset {}", place.offset);
    const bool trained = &place < places.data() + shape.n_parameters;
    ELIXIR_CHECK(trained != shape.frozen(place.chunk), "'{}' is trained: {}", place.name, trained);
    ELIXIR_CHECK(!place.name.empty() && place.name.size() <= shm::kMaxNameBytes, "a name");
    for (const shm::ParameterPlace& other : places) {
      if (&other == &place) continue;
      ELIXIR_CHECK(other.name != place.name, "a name twice");
      for (const Taken& a : taken) {
        for (const Taken& b : taken_by(other, shape)) {
          const bool apart = a.chunk != b.chunk || a.end <= b.begin || b.end <= a.begin;
          ELIXIR_CHECK(apart, "'{}' and '{}' overlap", place.name, other.name);
        }
      }
    }
  }
}

}  // namespace
}  // namespace elixir::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace elixir;
  fuzz::Input input(data, size);
  shm::Shape shape;
  shape.n_chunks = input.below(4);
  shape.n_gpu_chunks = input.below(3);
  shape.n_frozen_chunks = input.below(3);
  shape.chunk_numel = input.flag() ? 2048 : shm::kMaxChunkNumel;
  shape.n_parameters = input.below(8);
  const std::span<const std::byte> bytes = input.rest();
  const Result<std::vector<shm::ParameterPlace>> places = shm::decode_table(bytes, shape);
  if (!fuzz::accepted(places, Code::kProtocol)) return 0;
  const std::vector<std::byte> again = shm::encode_table(*places);
  ELIXIR_CHECK(
      again.size() == bytes.size() && std::memcmp(again.data(), bytes.data(), again.size()) == 0,
      "two encodings of one table");
  fuzz::check_places(*places, shape);
  return 0;
}
