#include "planner/estimate/stored_model.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "base/fd.h"
#include "base/units.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/stored_folder.h"

namespace elixir::planner {
namespace {

using checkpoints::TensorEntry;
using checkpoints::WeightMap;

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

Result<std::vector<TensorEntry>> read_file(const std::string& path) {
  const Result<OpenFile> file = open_file(path);
  if (!file.ok()) return file.status();
  Result<checkpoints::Header> header = checkpoints::read_header(file->fd.get());
  if (!header.ok()) return named(path, header.status());
  return std::move(header->tensors);
}

Result<WeightMap> read_index(const std::string& path) {
  const Result<OpenFile> file = open_file(path);
  if (!file.ok()) return file.status();
  if (file->bytes > checkpoints::kMaxIndexBytes) {
    return error(Code::kBadInput, "{}: {} are too many for an index, which may have {}", path,
                 format_bytes(file->bytes), format_bytes(checkpoints::kMaxIndexBytes));
  }
  std::string text(file->bytes, '\0');
  const Status read =
      checkpoints::read_bytes(file->fd.get(), 0, std::as_writable_bytes(std::span(text)));
  if (!read.ok()) return named(path, read);
  Result<WeightMap> shards = checkpoints::parse_index(text);
  return shards.ok() ? std::move(shards) : named(path, shards.status());
}

// The tensors of one shard that the index gives to it.
Status append_shard(const std::string& path, const std::set<std::string>& tensors,
                    std::vector<TensorEntry>& all) {
  Result<std::vector<TensorEntry>> shard = read_file(path);
  if (!shard.ok()) return shard.status();
  size_t found = 0;
  for (TensorEntry& tensor : *shard) {
    if (!tensors.contains(tensor.name)) continue;
    ++found;
    all.push_back(std::move(tensor));
  }
  if (found < tensors.size()) {
    return error(Code::kBadInput, "{}: the index gives it {} tensors, it has {} of them", path,
                 tensors.size(), found);
  }
  if (all.size() > checkpoints::kMaxTensors) {
    return error(Code::kBadInput, "{}: more than {} tensors in all shards", path,
                 checkpoints::kMaxTensors);
  }
  return Status();
}

Result<std::vector<TensorEntry>> read_shards(const std::string& index_path) {
  const Result<WeightMap> shards = read_index(index_path);
  if (!shards.ok()) return shards.status();
  const size_t slash = index_path.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : index_path.substr(0, slash + 1);
  std::vector<TensorEntry> all;
  for (const auto& [file, tensors] : *shards) {
    ELIXIR_RETURN_IF_ERROR(append_shard(folder + file, tensors, all));
  }
  return all;
}

Result<std::vector<TensorEntry>> read_folder(const std::string& path) {
  const Result<checkpoints::StoredFolder> folder = checkpoints::open_stored_folder(path);
  if (!folder.ok()) return folder.status();
  return std::vector<TensorEntry>(folder->model.begin(), folder->model.end());
}

Result<std::vector<TensorEntry>> read_tensors(const std::string& path) {
  struct stat about {};
  if (::stat(path.c_str(), &about) == 0 && S_ISDIR(about.st_mode)) return read_folder(path);
  return path.ends_with(".json") ? read_shards(path) : read_file(path);
}

}  // namespace

Result<StoredModel> parse_safetensors_header(std::string_view header, uint64_t data_bytes) {
  Result<std::vector<TensorEntry>> tensors = checkpoints::parse_header(header, data_bytes);
  if (!tensors.ok()) return tensors.status();
  return sort_tensors(std::move(*tensors));
}

Result<StoredModel> read_stored_model(const std::string& path) {
  Result<std::vector<TensorEntry>> tensors = read_tensors(path);
  if (!tensors.ok()) return tensors.status();
  StoredModel model = sort_tensors(std::move(*tensors));
  if (model.parameters.empty()) {
    return error(Code::kBadInput, "{}: it holds no parameters", path);
  }
  return model;
}

}  // namespace elixir::planner
