// read_stored_model of planner/estimate/safetensors_header.h: files.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "base/fd.h"
#include "base/units.h"
#include "planner/estimate/safetensors_header.h"

namespace elixir::planner {
namespace {

using nlohmann::json;

constexpr uint64_t kLengthBytes = 8;  // little-endian, before the header

struct OpenFile {
  UniqueFd fd;
  uint64_t bytes = 0;
};

Status named(const std::string& path, const Status& status) {
  return Status(status.code(), fmt::format("{}: {}", path, status.message()));
}

Result<OpenFile> open_file(const std::string& path) {
  OpenFile file;
  // Not blocking: a pipe of this name must not stop the program.
  file.fd.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat about {};
  if (!file.fd.valid() || ::fstat(file.fd.get(), &about) != 0) {
    return errno_status(Code::kBadInput, path);
  }
  if (!S_ISREG(about.st_mode)) {
    return error(Code::kBadInput,
                 "{}: not an ordinary file; name a .safetensors file or a "
                 "model.safetensors.index.json",
                 path);
  }
  file.bytes = static_cast<uint64_t>(about.st_size);
  return file;
}

// REQUIRES: offset + bytes is within the file, as it was when it was opened.
Result<std::string> read_part(const OpenFile& file, uint64_t offset, uint64_t bytes) {
  std::string text(bytes, '\0');
  for (uint64_t have = 0; have < bytes;) {
    const ssize_t got =
        ::pread(file.fd.get(), text.data() + have, bytes - have, static_cast<off_t>(offset + have));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_status(Code::kBadInput, "cannot read");
    if (got == 0) return error(Code::kBadInput, "it ended while it was read");
    have += static_cast<uint64_t>(got);
  }
  return text;
}

Result<StoredModel> read_header(const OpenFile& file) {
  if (file.bytes < kLengthBytes) {
    return error(Code::kBadInput,
                 "{} bytes are no safetensors file, which begins with {} of a length", file.bytes,
                 kLengthBytes);
  }
  const Result<std::string> length = read_part(file, 0, kLengthBytes);
  if (!length.ok()) return length.status();
  uint64_t header_bytes = 0;
  for (uint64_t i = 0; i < kLengthBytes; ++i) {
    header_bytes |= uint64_t{static_cast<unsigned char>((*length)[i])} << (8 * i);
  }
  const uint64_t rest = file.bytes - kLengthBytes;
  if (header_bytes > rest || header_bytes > kMaxHeaderBytes) {
    return error(Code::kBadInput,
                 "not a safetensors file, or cut off: its header would be {} bytes long; the file "
                 "has {}, and {} are the most",
                 header_bytes, rest, kMaxHeaderBytes);
  }
  const Result<std::string> header = read_part(file, kLengthBytes, header_bytes);
  if (!header.ok()) return header.status();
  return parse_safetensors_header(*header, rest - header_bytes);
}

Result<StoredModel> read_file(const std::string& path) {
  const Result<OpenFile> file = open_file(path);
  if (!file.ok()) return file.status();
  Result<StoredModel> model = read_header(*file);
  return model.ok() ? std::move(model) : named(path, model.status());
}

// Tensors by the shard that holds them.
using WeightMap = std::map<std::string, std::set<std::string>>;

Result<WeightMap> parse_index(std::string_view text) {
  // Lists have no place in an index, nor has anything below the map's values.
  const auto keep = [](int depth, json::parse_event_t event, const json&) {
    return event != json::parse_event_t::array_start && depth <= 2;
  };
  const json index = json::parse(text, keep, false);
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || map == index.end() || !map->is_object()) {
    return error(Code::kBadInput, "not an index of safetensors files: it has no 'weight_map'");
  }
  if (map->size() > kMaxTensors) return error(Code::kBadInput, "{} tensors", map->size());
  WeightMap shards;
  for (const auto& [tensor, shard] : map->items()) {
    const std::string file = shard.is_string() ? shard.get<std::string>() : "";
    if (file.empty() || file == "." || file == ".." || file.find('/') != std::string::npos ||
        file.find('\0') != std::string::npos) {
      return error(Code::kBadInput, "'weight_map' must name a file beside the index for '{:.100}'",
                   tensor);
    }
    shards[file].insert(tensor);
    if (shards.size() > kMaxShards) {
      return error(Code::kBadInput, "more than {} shards", kMaxShards);
    }
  }
  return shards;
}

Result<WeightMap> read_index(const std::string& path) {
  const Result<OpenFile> file = open_file(path);
  if (!file.ok()) return file.status();
  if (file->bytes > kMaxIndexBytes) {
    return error(Code::kBadInput, "{}: {} are too many for an index, which may have {}", path,
                 format_bytes(file->bytes), format_bytes(kMaxIndexBytes));
  }
  const Result<std::string> text = read_part(*file, 0, file->bytes);
  if (!text.ok()) return named(path, text.status());
  Result<WeightMap> shards = parse_index(*text);
  return shards.ok() ? std::move(shards) : named(path, shards.status());
}

// The parameters of one shard that the index gives to it.
Status append_shard(const std::string& path, const std::set<std::string>& tensors,
                    StoredModel& all) {
  Result<StoredModel> shard = read_file(path);
  if (!shard.ok()) return shard.status();
  size_t found = 0;
  for (NamedShape& parameter : shard->parameters) {
    if (!tensors.contains(parameter.name)) continue;
    ++found;
    all.parameters.push_back(std::move(parameter));
  }
  if (found + shard->buffers < tensors.size()) {
    return error(Code::kBadInput, "{}: the index gives it {} tensors, it has {} of them", path,
                 tensors.size(), found);
  }
  if (all.parameters.size() > kMaxTensors) {
    return error(Code::kBadInput, "{}: more than {} tensors in all shards", path, kMaxTensors);
  }
  all.buffers += shard->buffers;
  all.buffer_bytes += shard->buffer_bytes;
  return Status();
}

Result<StoredModel> read_shards(const std::string& index_path) {
  const Result<WeightMap> shards = read_index(index_path);
  if (!shards.ok()) return shards.status();
  const size_t slash = index_path.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : index_path.substr(0, slash + 1);
  StoredModel all;
  for (const auto& [file, tensors] : *shards) {
    ELIXIR_RETURN_IF_ERROR(append_shard(folder + file, tensors, all));
  }
  return all;
}

}  // namespace

Result<StoredModel> read_stored_model(const std::string& path) {
  Result<StoredModel> model = path.ends_with(".json") ? read_shards(path) : read_file(path);
  if (model.ok() && model->parameters.empty()) {
    return error(Code::kBadInput, "{}: it holds no parameters", path);
  }
  return model;
}

}  // namespace elixir::planner
