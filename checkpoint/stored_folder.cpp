#include "checkpoint/stored_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "checkpoint/folder_calls.h"
#include "checkpoint/hub_cache.h"
#include "checkpoint/listing.h"

namespace elixir::checkpoints {
namespace {

constexpr std::string_view kOneFile = "model.safetensors";

Status of_file(const StoredFolder& folder, std::string_view name, const Status& status) {
  return Status(status.code(), fmt::format("{}/{}: {}", folder.path, name, status.message()));
}

// None: there is no such file. What is wrong is said without its name.
Result<std::optional<StoredFile>> find_file(int folder, const std::string& name) {
  const auto failed = [&](const char* what) -> Status {
    return errno_status(Code::kBadInput, what);
  };
  const auto is_link = [] {
    return error(Code::kBadInput,
                 "a symbolic link, which is not followed; copy the folder with cp -rL");
  };
  UniqueFd within;
  const size_t slash = name.find('/');
  if (slash != std::string::npos) {
    const std::string part = name.substr(0, slash);
    within = open_subfolder(folder, part);
    if (!within.valid() && errno == ENOENT) return std::optional<StoredFile>();
    if (!within.valid() && (errno == ENOTDIR || errno == ELOOP)) {
      struct stat about {};
      const bool link = ::fstatat(folder, part.c_str(), &about, AT_SYMLINK_NOFOLLOW) == 0 &&
                        S_ISLNK(about.st_mode);
      if (link) return is_link();
      errno = ENOTDIR;
    }
    if (!within.valid()) return failed("cannot be opened");
  }
  StoredFile file;
  file.name = name;
  // Not blocking: a pipe of this name must not stop the program.
  file.fd.reset(::openat(within.valid() ? within.get() : folder,
                         name.c_str() + (slash == std::string::npos ? 0 : slash + 1),
                         O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file.fd.valid() && errno == ENOENT) return std::optional<StoredFile>();
  if (!file.fd.valid() && errno == ELOOP) {
    Result<UniqueFd> linked = open_cache_link(folder, name);
    if (!linked.ok()) return linked.status();
    file.fd = std::move(*linked);
  }
  struct stat about {};
  if (!file.fd.valid() || ::fstat(file.fd.get(), &about) != 0) return failed("cannot be opened");
  if (!S_ISREG(about.st_mode)) return error(Code::kBadInput, "not an ordinary file");
  file.bytes = static_cast<uint64_t>(about.st_size);
  return std::optional<StoredFile>(std::move(file));
}
Result<std::optional<StoredFile>> find_file(const StoredFolder& folder, const std::string& name) {
  Result<std::optional<StoredFile>> found = find_file(folder.folder.get(), name);
  return found.ok() ? std::move(found) : of_file(folder, name, found.status());
}

Result<std::string> read_whole(const StoredFile& file, uint64_t most) {
  if (file.bytes > most) {
    return error(Code::kBadInput, "{} bytes, where {} are the most", file.bytes, most);
  }
  std::string text(file.bytes, '\0');
  const Status read = read_bytes(file.fd.get(), 0, std::as_writable_bytes(std::span(text)));
  return read.ok() ? Result<std::string>(std::move(text)) : read;
}
Result<std::string> read_whole(const StoredFolder& folder, const StoredFile& file, uint64_t most) {
  Result<std::string> text = read_whole(file, most);
  return text.ok() ? std::move(text) : of_file(folder, file.name, text.status());
}

// The file's tensors, of which `wanted` are taken where it is given.
Status add_tensors(StoredFolder& folder, StoredFile file, std::vector<StoredTensor>& all,
                   const std::set<std::string>* wanted = nullptr) {
  Result<Header> header = read_header(file.fd.get());
  if (!header.ok()) return of_file(folder, file.name, header.status());
  file.data_begin = header->data_begin;
  size_t found = 0;
  for (TensorEntry& tensor : header->tensors) {
    if (wanted != nullptr && !wanted->contains(tensor.name)) continue;
    ++found;
    const uint64_t offset = file.data_begin + tensor.begin;
    all.push_back({std::move(tensor), static_cast<uint32_t>(folder.files.size()), offset});
  }
  if (wanted != nullptr && found < wanted->size()) {
    std::set<std::string> missing = *wanted;
    for (size_t i = all.size() - found; i < all.size(); ++i) missing.erase(all[i].name);
    return of_file(folder, file.name,
                   error(Code::kBadInput, "tensor '{:.100}': {} says that it is here, it is not",
                         *missing.begin(), kIndexName));
  }
  if (all.size() > kMaxTensors) {
    return of_file(folder, file.name,
                   error(Code::kBadInput, "more than {} tensors in all files", kMaxTensors));
  }
  ::posix_fadvise(file.fd.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  folder.files.push_back(std::move(file));
  return Status();
}

Status check_names(const StoredFolder& folder, const std::vector<StoredTensor>& tensors) {
  std::vector<const StoredTensor*> sorted;
  for (const StoredTensor& tensor : tensors) sorted.push_back(&tensor);
  std::sort(sorted.begin(), sorted.end(),
            [](const auto* a, const auto* b) { return a->name < b->name; });
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end(),
                                        [](auto* a, auto* b) { return a->name == b->name; });
  if (twice == sorted.end()) return Status();
  return error(Code::kBadInput, "{}: it is also in {}", folder.place_of(**twice),
               folder.files[(*std::next(twice))->file].name);
}

enum class Holds { kModel, kOptimizer, kOther };
Holds holds(std::string_view name) {
  if (!name.ends_with(".safetensors")) return Holds::kOther;
  if (name.starts_with("optimizer/")) return Holds::kOptimizer;
  return name.starts_with("model") && name.find('/') == name.npos ? Holds::kModel : Holds::kOther;
}

// One of the manifest's files: of the size that it says, and its tensors where it has some.
Status add_listed(StoredFolder& folder, const ManifestFile& listed) {
  Result<std::optional<StoredFile>> found = find_file(folder, listed.name);
  if (!found.ok()) return found.status();
  if (!found->has_value()) {
    return of_file(folder, listed.name,
                   error(Code::kBadInput, "it is missing, but {} lists it", kManifestName));
  }
  StoredFile& file = **found;
  const Holds what = holds(listed.name);
  if (const Status size = check_size(listed, file.bytes); !size.ok()) {
    // A header that no longer fits names the tensor that is cut.
    const Result<Header> header = read_header(file.fd.get());
    const bool cut = what != Holds::kOther && !header.ok();
    return of_file(folder, listed.name,
                   error(Code::kBadInput, "{}{}", size.message(),
                         cut ? ": " + header.status().message() : std::string()));
  }
  if (what == Holds::kOther) return Status();
  file.pieces = listed.pieces;
  return add_tensors(folder, std::move(file),
                     what == Holds::kModel ? folder.model : folder.optimizer);
}

Status open_checkpoint(StoredFolder& folder, Manifest manifest) {
  const Status named = check_named_step(folder.path, manifest.step);
  if (!named.ok()) return error(named.code(), "{}: {}", folder.path, named.message());
  for (const ManifestFile& listed : manifest.files) {
    ELIXIR_RETURN_IF_ERROR(add_listed(folder, listed));
  }
  folder.manifest = std::move(manifest);
  return Status();
}

Status open_shards(StoredFolder& folder, const StoredFile& index) {
  const Result<std::string> text = read_whole(folder, index, kMaxIndexBytes);
  if (!text.ok()) return text.status();
  const Result<WeightMap> shards = parse_index(*text);
  if (!shards.ok()) return of_file(folder, kIndexName, shards.status());
  for (const auto& [name, tensors] : *shards) {
    if (!is_file_name(name)) {
      return of_file(
          folder, kIndexName,
          error(Code::kBadInput, "'{:.100}' is not the name of a file that is read", name));
    }
    Result<std::optional<StoredFile>> shard = find_file(folder, name);
    if (!shard.ok()) return shard.status();
    if (!shard->has_value()) {
      return of_file(folder, name,
                     error(Code::kBadInput, "it is missing, but {} lists it", kIndexName));
    }
    ELIXIR_RETURN_IF_ERROR(add_tensors(folder, std::move(**shard), folder.model, &tensors));
  }
  return Status();
}

// What stands in a folder that is none.
Status no_model(const StoredFolder& folder) {
  std::string remedy;
  const Result<std::vector<std::string>> names = names_in(folder.folder.get());
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    if (name.starts_with("step-") && name.find('.') == name.npos) {
      remedy = fmt::format("; it has checkpoints: name one, such as {}/{}", folder.path, name);
    } else if (remedy.empty() && name.starts_with("pytorch_model")) {
      remedy =
          fmt::format("; {} is a pickle, which is not read: save it again as safetensors", name);
    }
  }
  return error(Code::kBadInput, "{}: no {}, no {} and no {} in it{}", folder.path, kOneFile,
               kIndexName, kManifestName, remedy);
}

// Where there are both, shards are of a save before the one file's, and transformers takes that.
Status open_plain(StoredFolder& folder) {
  Result<std::optional<StoredFile>> file = find_file(folder, std::string(kOneFile));
  if (!file.ok()) return file.status();
  if (file->has_value()) return add_tensors(folder, std::move(**file), folder.model);
  Result<std::optional<StoredFile>> index = find_file(folder, kIndexName);
  if (!index.ok()) return index.status();
  return index->has_value() ? open_shards(folder, **index) : no_model(folder);
}

Status check_pieces(const StoredFolder& folder, const ManifestFile& listed, std::string_view text) {
  size_t offset = 0;
  for (const Piece& piece : listed.pieces) {
    const auto bytes = std::as_bytes(std::span(text));
    const bool within = piece.bytes <= text.size() - offset;
    if (!within || xxh3_of(bytes.subspan(offset, piece.bytes)) != piece.xxh3) break;
    offset += piece.bytes;
  }
  if (offset == text.size() && text.size() == listed.bytes) return Status();
  return of_file(folder, listed.name,
                 error(Code::kBadInput, "damaged: its bytes are not those that were written"));
}

}  // namespace

std::string StoredFolder::place_of(const StoredTensor& tensor) const {
  return fmt::format("{}/{}: tensor '{:.100}'", path, files[tensor.file].name, tensor.name);
}

bool has_manifest(int at, const std::string& folder) {
  struct stat about {};
  return ::fstatat(at, fmt::format("{}/{}", folder, kManifestName).c_str(), &about,
                   AT_SYMLINK_NOFOLLOW) == 0 &&
         !S_ISDIR(about.st_mode);
}

Result<std::optional<Manifest>> read_manifest(int folder) {
  if (!has_manifest(folder)) return std::optional<Manifest>();
  const auto failed = [](const Status& status) {
    return error(status.code(), "{}: {}", kManifestName, status.message());
  };
  const Result<std::optional<StoredFile>> file = find_file(folder, kManifestName);
  if (!file.ok()) return failed(file.status());
  if (!file->has_value()) return std::optional<Manifest>();
  const Result<std::string> text = read_whole(**file, kMaxManifestBytes);
  if (!text.ok()) return failed(text.status());
  Result<Manifest> manifest = decode_manifest(*text);
  if (!manifest.ok()) return failed(manifest.status());
  return std::optional<Manifest>(std::move(*manifest));
}

Result<StoredFolder> open_stored_folder(int folder, const std::string& path) {
  StoredFolder stored;
  stored.path = path;
  stored.folder.reset(::fcntl(folder, F_DUPFD_CLOEXEC, 0));
  if (!stored.folder.valid()) return errno_status(Code::kBadInput, path + ": cannot be opened");
  Result<std::optional<Manifest>> manifest = read_manifest(folder);
  if (!manifest.ok()) {
    return error(manifest.status().code(), "{}/{}", path, manifest.status().message());
  }
  ELIXIR_RETURN_IF_ERROR(manifest->has_value() ? open_checkpoint(stored, std::move(**manifest))
                                               : open_plain(stored));
  ELIXIR_RETURN_IF_ERROR(check_names(stored, stored.model));
  ELIXIR_RETURN_IF_ERROR(check_names(stored, stored.optimizer));
  if (stored.holds_states_alone() && !stored.model.empty()) {
    return error(Code::kBadInput, "{}: {} says that no model is here, and it is", path,
                 kManifestName);
  }
  const bool alone = stored.holds_states_alone();
  if ((alone ? stored.optimizer : stored.model).empty()) {
    return error(Code::kBadInput, "{}: it holds no tensors", path);
  }
  return stored;
}

Status check_has_model(const StoredFolder& folder) {
  if (!folder.holds_states_alone()) return Status();
  return error(Code::kBadInput,
               "{}: it holds states alone, without the model (SaveOptions::model): give the folder "
               "of the model that was saved beside it",
               folder.path);
}

Result<StoredFolder> open_stored_folder(const std::string& path) {
  const UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.valid()) return open_stored_folder(folder.get(), path);
  const std::string remedy = errno == ENOENT ? missing_folder_remedy(path) : "";
  if (!remedy.empty()) {
    return error(Code::kBadInput, "{}: this folder does not exist{}", path, remedy);
  }
  return errno_status(Code::kBadInput, path + ": cannot be opened as a folder");
}

Result<StoredFile> open_stored_file(const StoredFolder& folder, const std::string& name) {
  if (!is_file_name(name)) {
    return error(Code::kBadInput, "{}: '{:.100}' is not the name of a file in it", folder.path,
                 name);
  }
  Result<std::optional<StoredFile>> file = find_file(folder, name);
  if (!file.ok()) return file.status();
  if (!file->has_value()) {
    return of_file(folder, name, error(Code::kBadInput, "this file does not exist"));
  }
  return std::move(**file);
}

Result<std::string> read_stored_file(const StoredFolder& folder, const std::string& name,
                                     uint64_t most) {
  const Result<StoredFile> file = open_stored_file(folder, name);
  if (!file.ok()) return file.status();
  Result<std::string> text = read_whole(folder, *file, most);
  if (!text.ok() || !folder.manifest.has_value()) return text;
  for (const ManifestFile& listed : folder.manifest->files) {
    if (listed.name == name) ELIXIR_RETURN_IF_ERROR(check_pieces(folder, listed, *text));
  }
  return text;
}

}  // namespace elixir::checkpoints
