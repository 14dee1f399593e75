#include "shm/parameter_table.h"

#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <string_view>

namespace elixir::shm {
namespace {

template <typename T>
void append(std::vector<std::byte>& out, T value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

// Takes values off the front of hostile bytes; once it ran short, every take fails.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  bool take(T* value) {
    if (bytes_.size() < sizeof(T)) return false;
    std::memcpy(value, bytes_.data(), sizeof(T));
    bytes_ = bytes_.subspan(sizeof(T));
    return true;
  }
  bool take_text(std::string* text, size_t length) {
    if (bytes_.size() < length) return false;
    text->assign(reinterpret_cast<const char*>(bytes_.data()), length);
    bytes_ = bytes_.subspan(length);
    return true;
  }
  bool empty() const { return bytes_.empty(); }

 private:
  std::span<const std::byte> bytes_;
};

// No sum or product of foreign numbers wraps: a place is looked at in its chunk first, then what
// is left of all chunks is as many elements as check_shape() allows.
bool is_possible(const ParameterPlace& place, const Shape& shape) {
  if (place.chunk >= shape.total_chunks() || place.numel == 0) return false;
  if (place.offset >= shape.chunk_numel || place.offset % kAlignNumel != 0) return false;
  if (place.numel <= shape.chunk_numel - place.offset) return true;
  const uint64_t chunks_left = shape.total_chunks() - place.chunk;
  if (place.offset != 0 || place.numel > chunks_left * shape.chunk_numel) return false;
  // Chunks of one home are numbered one behind another.
  const uint32_t last = chunks_of(place, shape).end() - 1;
  return shape.on_gpu(place.chunk) == shape.on_gpu(last) &&
         shape.frozen(place.chunk) == shape.frozen(last);
}

// What nothing else may lie in, in elements from the first chunk on.
struct Range {
  uint64_t begin, end;
  uint32_t chunk;
};

Range range_of(const ParameterPlace& place, const Shape& shape) {
  const uint64_t begin = place.chunk * shape.chunk_numel + place.offset;
  if (!is_long(place, shape)) return {begin, begin + place.numel, place.chunk};
  return {begin, chunks_of(place, shape).end() * shape.chunk_numel, place.chunk};
}

Status check_places(std::span<const ParameterPlace> places, const Shape& shape) {
  std::set<std::string_view> names;
  std::vector<Range> ranges;
  for (const ParameterPlace& place : places) {
    if (place.name.empty() || !names.insert(place.name).second) {
      return error(Code::kProtocol, "parameter name '{}' is empty or stands twice", place.name);
    }
    if (!is_possible(place, shape)) {
      return error(Code::kProtocol,
                   "parameter '{}': [{}, +{}) of chunk {} is outside or misaligned, in {} + {} + "
                   "{} chunks of {} elements",
                   place.name, place.offset, place.numel, place.chunk, shape.n_chunks,
                   shape.n_gpu_chunks, shape.n_frozen_chunks, shape.chunk_numel);
    }
    ranges.push_back(range_of(place, shape));
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i - 1].end <= ranges[i].begin) continue;
    return error(Code::kProtocol, "two parameters overlap in chunk {}", ranges[i].chunk);
  }
  return Status();
}

}  // namespace

ChunkRun chunks_of(const ParameterPlace& place, const Shape& shape) {
  return {place.chunk, static_cast<uint32_t>(chunks_for(place.numel, shape.chunk_numel))};
}

ChunkRun chunks_of(const ParameterPlace& place, const Shape& shape, uint64_t first,
                   uint64_t numel) {
  ELIXIR_CHECK(numel > 0 && first < place.numel && numel <= place.numel - first,
               "'{}' has no elements [{}, +{})", place.name, first, numel);
  if (!is_long(place, shape)) return {place.chunk, 1};
  const auto before = static_cast<uint32_t>(first / shape.chunk_numel);
  const auto last = static_cast<uint32_t>((first + numel - 1) / shape.chunk_numel);
  return {place.chunk + before, last - before + 1};
}

ParameterPart part_in(const ParameterPlace& place, const Shape& shape, uint32_t chunk) {
  ELIXIR_CHECK(chunks_of(place, shape).contains(chunk), "'{}' has no part in chunk {}", place.name,
               chunk);
  if (!is_long(place, shape)) return {0, place.offset, place.numel};
  const uint64_t first = (chunk - place.chunk) * shape.chunk_numel;
  return {first, 0, std::min(shape.chunk_numel, place.numel - first)};
}

ParameterPart part_in(const ParameterPlace& place, const Shape& shape, uint32_t chunk,
                      uint64_t first, uint64_t numel) {
  const ParameterPart all = part_in(place, shape, chunk);
  const uint64_t from = std::max(first, all.first);
  const uint64_t to = std::min(first + numel, all.first + all.numel);
  return {from, all.offset + (from - all.first), to - from};
}

std::vector<std::byte> encode_table(std::span<const ParameterPlace> places) {
  std::vector<std::byte> out;
  append(out, static_cast<uint32_t>(places.size()));
  for (const ParameterPlace& place : places) {
    append(out, place.chunk);
    append(out, place.offset);
    append(out, place.numel);
    append(out, static_cast<uint32_t>(place.name.size()));
    const auto name = std::as_bytes(std::span(place.name));
    out.insert(out.end(), name.begin(), name.end());
  }
  return out;
}

Result<std::vector<ParameterPlace>> decode_table(std::span<const std::byte> bytes,
                                                 const Shape& shape) {
  Reader reader(bytes);
  uint32_t count = 0;
  if (!reader.take(&count) || count == 0 || count > kMaxParameters) {
    return error(Code::kProtocol, "a parameter table with {} entries; 1 to {} are possible", count,
                 kMaxParameters);
  }
  std::vector<ParameterPlace> places;
  for (uint32_t i = 0; i < count; ++i) {
    ParameterPlace place;
    uint32_t name_bytes = 0;
    if (!reader.take(&place.chunk) || !reader.take(&place.offset) || !reader.take(&place.numel) ||
        !reader.take(&name_bytes) || name_bytes > kMaxNameBytes ||
        !reader.take_text(&place.name, name_bytes)) {
      return error(Code::kProtocol, "the parameter table ends inside entry {} of {}", i, count);
    }
    places.push_back(std::move(place));
  }
  if (!reader.empty()) return error(Code::kProtocol, "bytes after the parameter table");
  ELIXIR_RETURN_IF_ERROR(check_places(places, shape));
  if (shape.n_parameters > count) {
    return error(Code::kProtocol, "{} trained parameters of {} in the table", shape.n_parameters,
                 count);
  }
  for (uint32_t i = 0; i < count; ++i) {
    if (shape.frozen(places[i].chunk) == (i >= shape.n_parameters)) continue;
    return error(
        Code::kProtocol,
        "parameter '{}' is number {} of the table, of which {} are trained, and in {} chunk",
        places[i].name, i, shape.n_parameters,
        shape.frozen(places[i].chunk) ? "a frozen" : "no frozen");
  }
  return places;
}

uint64_t table_xxh64(std::span<const std::byte> bytes) {
  return XXH64(bytes.data(), bytes.size(), 0);
}

uint64_t most_table_bytes(const Shape& shape) {
  constexpr uint64_t kEntryBytes = 3 * sizeof(uint32_t) + 2 * sizeof(uint64_t) + kMaxNameBytes;
  const uint64_t places_a_chunk = (shape.chunk_numel + kAlignNumel - 1) / kAlignNumel;
  const uint64_t places = std::min<uint64_t>(kMaxParameters, places_a_chunk * shape.total_chunks());
  return std::min(kMaxTableBytes, sizeof(uint32_t) + places * kEntryBytes);
}

Result<UniqueFd> write_table_fd(std::span<const std::byte> bytes) {
  UniqueFd fd(::memfd_create("elixir-table", MFD_CLOEXEC));
  if (!fd.valid()) return errno_status(Code::kInternal, "memfd_create");
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t wrote = ::write(fd.get(), bytes.data() + done, bytes.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return errno_status(Code::kResourceExhausted, "write of the parameter table");
    done += static_cast<size_t>(wrote);
  }
  return fd;
}

Result<std::vector<std::byte>> read_table_fd(int fd, uint64_t bytes) {
  if (bytes > kMaxTableBytes) {
    return error(Code::kProtocol, "a parameter table of {} bytes; at most {} are possible", bytes,
                 kMaxTableBytes);
  }
  std::vector<std::byte> out(bytes);
  for (size_t done = 0; done < out.size();) {
    const ssize_t got = ::pread(fd, out.data() + done, out.size() - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_status(Code::kProtocol, "reading the parameter table");
    if (got == 0) return error(Code::kProtocol, "the parameter table ends at byte {}", done);
    done += static_cast<size_t>(got);
  }
  return out;
}

uint64_t total_numel(std::span<const ParameterPlace> places) {
  uint64_t sum = 0;
  for (const ParameterPlace& place : places) sum += place.numel;
  return sum;
}

}  // namespace elixir::shm
