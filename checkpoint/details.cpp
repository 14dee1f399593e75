#include "checkpoint/details.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <set>

#include "base/units.h"
#include "checkpoint/json_values.h"
#include "checkpoint/safetensors.h"

namespace elixir::checkpoints {
namespace {

using nlohmann::json;

// Of kMaxParameters parameters: shapes, counts, names.
constexpr uint64_t kMaxJsonBytes = uint64_t{64} << 20;
constexpr JsonLimits kJsonLimits = {.depth = 4, .values = 10'000'000};
constexpr size_t kMaxParameters = 1 << 20;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;

// ---- encoding: the JSON says how long each part of the bytes behind it is, in their order ----

json with_bytes(json value, uint64_t bytes) {
  value["bytes"] = bytes;
  return value;
}

std::string head_of(const Details& details, uint64_t manifest_bytes) {
  json head = {{"manifest_bytes", manifest_bytes},
               {"shapes", details.shapes},
               {"ignored", details.ignored},
               {"extras", json::array()},
               {"files", json::array()},
               {"updates", json::array()},
               {"keep", {{"last", details.keep.last}, {"every", details.keep.every}}}};
  for (const ExtraValues& extra : details.extras) {
    head["extras"].push_back(
        with_bytes({{"name", extra.name}, {"dtype", extra.dtype->name}, {"shape", extra.shape}},
                   extra.bytes.size()));
  }
  for (const UserFile& file : details.files) {
    head["files"].push_back(with_bytes({{"name", file.name}}, file.bytes.size()));
  }
  for (const auto& [parameter, count] : details.updates) {
    head["updates"].push_back(json::array({parameter, count}));
  }
  if (details.shadow_bytes) head["shadow_bytes"] = *details.shadow_bytes;
  if (details.device_hash != 0) head["device_hash"] = details.device_hash;
  const std::string text = dump_json(head);
  const uint64_t bytes = text.size();
  std::string length(reinterpret_cast<const char*>(&bytes), sizeof bytes);
  return length + text;
}

// All of it, in parts, so that what is large is not copied.
Status for_each_part(const Details& details,
                     const std::function<Status(std::span<const std::byte>)>& take) {
  // Ranks other than 0 give none.
  const std::string manifest =
      details.manifest == Manifest() ? "" : encode_manifest(details.manifest);
  const std::string head = head_of(details, manifest.size());
  // Else it would end the session of who sends it.
  if (head.size() > kMaxJsonBytes || manifest.size() > kMaxManifestBytes) {
    return error(Code::kInvalidArgument,
                 "cannot save a model whose parameters' names, shapes and groups take {} and {}: "
                 "the limits are {} and {}",
                 format_bytes(head.size()), format_bytes(manifest.size()),
                 format_bytes(kMaxJsonBytes), format_bytes(kMaxManifestBytes));
  }
  for (const std::string* const text : {&head, &manifest}) {
    ELIXIR_RETURN_IF_ERROR(take(std::as_bytes(std::span(*text))));
  }
  for (const ExtraValues& extra : details.extras) ELIXIR_RETURN_IF_ERROR(take(extra.bytes));
  for (const UserFile& file : details.files) ELIXIR_RETURN_IF_ERROR(take(file.bytes));
  return Status();
}

Status write_part(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(fd, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      return errno_status(Code::kResourceExhausted,
                          "cannot hold what is to be saved beside the chunks (buffers, files)");
    }
    bytes = bytes.subspan(static_cast<size_t>(wrote));
  }
  return Status();
}

// ---- decoding: everything may be a lie ----

Status not_details(const std::string& what) {
  return error(Code::kProtocol, "the details of a checkpoint: {}", what);
}

// Bytes [offset, offset + to.size()) of the whole. They are there.
using ReadAt = std::function<Status(uint64_t offset, std::span<std::byte> to)>;

class Decoder {
 public:
  Decoder(uint64_t bytes, const ReadAt& read) : bytes_(bytes), read_(read) {}

  Result<Details> decode() {
    ELIXIR_RETURN_IF_ERROR(read_head());
    read_numbers();
    if (json_.ok()) ELIXIR_RETURN_IF_ERROR(read_manifest());
    if (json_.ok()) ELIXIR_RETURN_IF_ERROR(read_extras());
    if (json_.ok()) ELIXIR_RETURN_IF_ERROR(read_files());
    if (!json_.ok()) return not_details(json_.status().message());
    if (at_ == bytes_) return std::move(details_);
    return not_details(fmt::format("{} bytes that belong to nothing", bytes_ - at_));
  }

 private:
  Status read_head() {
    uint64_t length = 0;
    if (bytes_ < sizeof length) return not_details(fmt::format("{} bytes", bytes_));
    ELIXIR_RETURN_IF_ERROR(read_(0, std::as_writable_bytes(std::span(&length, 1))));
    at_ = sizeof length;
    if (length > std::min(kMaxJsonBytes, bytes_ - at_)) {
      return not_details(fmt::format("{} bytes of JSON in {}", length, bytes_));
    }
    std::string text(length, '\0');
    ELIXIR_RETURN_IF_ERROR(read_(at_, std::as_writable_bytes(std::span(text))));
    at_ += length;
    Result<json> head = parse_json(text, kJsonLimits);
    if (!head.ok()) return not_details(head.status().message());
    head_ = std::move(*head);
    return Status();
  }

  // What is said in the JSON alone.
  void read_numbers() {
    const json& keep = json_.field(head_, "keep");
    details_.keep.last =
        static_cast<uint32_t>(json_.whole(json_.field(keep, "last"), "last", 0, UINT32_MAX));
    details_.keep.every = json_.whole(json_.field(keep, "every"), "every", 0, UINT64_MAX);
    if (head_.is_object() && head_.contains("shadow_bytes")) {
      details_.shadow_bytes = json_.whole(head_["shadow_bytes"], "shadow_bytes", 0, UINT64_MAX);
    }
    if (head_.is_object() && head_.contains("device_hash")) {
      details_.device_hash = json_.whole(head_["device_hash"], "device_hash", 0, UINT64_MAX);
    }
    for (const json& shape : list("shapes", kMaxParameters)) {
      details_.shapes.push_back(read_shape(shape));
    }
    for (const json& name : list("ignored", kMaxFiles)) {
      details_.ignored.push_back(json_.text(name, "ignored", kMaxNameBytes));
    }
    for (const json& pair : list("updates", kMaxParameters)) {
      if (!pair.is_array() || pair.size() != 2) return json_.fail("'updates' are not pairs");
      const uint64_t parameter = json_.whole(pair[0], "parameter", 0, kMaxParameters - 1);
      const uint64_t count = json_.whole(pair[1], "count", 0, UINT64_MAX);
      if (!details_.updates.emplace(static_cast<uint32_t>(parameter), count).second) {
        return json_.fail(fmt::format("two counts of parameter {}", parameter));
      }
    }
  }

  const json& list(const char* name, size_t most) {
    static const json none = json::array();
    const json& all = json_.list(head_, name);
    if (all.size() <= most) return all;
    json_.fail(fmt::format("'{}' has {} entries, at most {} are possible", name, all.size(), most));
    return none;
  }

  std::vector<int64_t> read_shape(const json& dimensions) {
    std::vector<int64_t> shape;
    if (!dimensions.is_array() || dimensions.size() > kMaxDimensions) {
      json_.fail(fmt::format("a shape that is not a list of at most {}", kMaxDimensions));
      return shape;
    }
    for (const json& dimension : dimensions) {
      shape.push_back(static_cast<int64_t>(json_.whole(dimension, "dimension", 0, INT64_MAX)));
    }
    return shape;
  }

  // The next bytes behind the JSON, of which `described` says how many.
  Status take(const json& described, const char* name, std::vector<std::byte>* to) {
    const uint64_t bytes = json_.whole(json_.field(described, name), name, 0, bytes_ - at_);
    if (!json_.ok()) return Status();
    to->resize(bytes);
    ELIXIR_RETURN_IF_ERROR(read_(at_, *to));
    at_ += bytes;
    return Status();
  }

  Status read_manifest() {
    std::vector<std::byte> text;
    ELIXIR_RETURN_IF_ERROR(take(head_, "manifest_bytes", &text));
    if (text.empty()) return Status();
    Result<Manifest> manifest =
        decode_manifest({reinterpret_cast<const char*>(text.data()), text.size()});
    if (!manifest.ok()) return not_details(manifest.status().message());
    details_.manifest = std::move(*manifest);
    return Status();
  }

  Status read_extras() {
    std::set<std::string> names;
    for (const json& described : list("extras", kMaxParameters)) {
      ExtraValues& extra = details_.extras.emplace_back();
      extra.name = json_.text(json_.field(described, "name"), "name", kMaxNameBytes);
      extra.dtype = find_dtype(json_.text(json_.field(described, "dtype"), "dtype", 20));
      extra.shape = read_shape(json_.field(described, "shape"));
      ELIXIR_RETURN_IF_ERROR(take(described, "bytes", &extra.bytes));
      if (!json_.ok()) break;
      if (extra.name.empty() || !names.insert(extra.name).second) {
        json_.fail(fmt::format("a tensor's name is '{}', which is empty or another's", extra.name));
      } else if (extra.dtype == nullptr || !fits(extra)) {
        json_.fail(fmt::format("the bytes of tensor '{}' are not those of its type and shape",
                               extra.name));
      }
    }
    return Status();
  }

  static bool fits(const ExtraValues& extra) {
    uint64_t product = extra.dtype->bytes;
    for (const int64_t dimension : extra.shape) {
      if (__builtin_mul_overflow(product, static_cast<uint64_t>(dimension), &product)) return false;
    }
    return product == extra.bytes.size();
  }

  Status read_files() {
    std::set<std::string> names;
    for (const json& described : list("files", kMaxFiles)) {
      UserFile& file = details_.files.emplace_back();
      file.name = json_.text(json_.field(described, "name"), "name", kMaxNameBytes);
      ELIXIR_RETURN_IF_ERROR(take(described, "bytes", &file.bytes));
      if (!json_.ok()) break;
      const Status named = check_user_file_name(file.name);
      if (!named.ok()) json_.fail(named.message());
      if (!names.insert(file.name).second) {
        json_.fail(fmt::format("two files named '{}'", file.name));
      }
    }
    return Status();
  }

  const uint64_t bytes_;
  const ReadAt& read_;
  JsonReader json_;
  json head_;
  uint64_t at_ = 0;  // of bytes_: what comes next
  Details details_;
};

Status pread_all(int fd, uint64_t offset, std::span<std::byte> to) {
  while (!to.empty()) {
    const ssize_t got = ::pread(fd, to.data(), to.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_status(Code::kInternal, "reading the details of a checkpoint");
    if (got == 0) return not_details(fmt::format("they end at byte {}", offset));
    offset += static_cast<uint64_t>(got);
    to = to.subspan(static_cast<size_t>(got));
  }
  return Status();
}

}  // namespace

Status check_user_file_name(const std::string& name) {
  if (!is_file_name(name)) {
    return error(Code::kInvalidArgument,
                 "'{}' cannot be a file of a checkpoint: one or two parts of letters, digits, '.', "
                 "'_' and '-' can, none of them '.' or '..'",
                 name);
  }
  if (is_own_file(name)) {
    return error(Code::kInvalidArgument,
                 "'{}' is a name of the checkpoint's own files: choose another, as 'user/...'",
                 name);
  }
  return Status();
}

std::vector<std::byte> encode_details(const Details& details) {
  std::vector<std::byte> all;
  const Status copied = for_each_part(details, [&all](std::span<const std::byte> part) {
    all.insert(all.end(), part.begin(), part.end());
    return Status();
  });
  ELIXIR_CHECK(copied.ok(), "{}", copied.message());
  return all;
}

Result<UniqueFd> write_details(const Details& details) {
  for (const UserFile& file : details.files) {
    ELIXIR_RETURN_IF_ERROR(check_user_file_name(file.name));
  }
  UniqueFd fd(::memfd_create("elixir-details", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return errno_status(Code::kInternal, "memfd_create");
  uint64_t bytes = 0;
  ELIXIR_RETURN_IF_ERROR(for_each_part(details, [&](std::span<const std::byte> part) {
    bytes += part.size();
    if (bytes <= kMaxDetailsBytes) return write_part(fd.get(), part);
    return error(
        Code::kInvalidArgument,
        "buffers and files of more than {} cannot be saved with a model: write large files "
        "beside the checkpoint",
        format_bytes(kMaxDetailsBytes));
  }));
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return errno_status(Code::kInternal, "sealing the details of a checkpoint");
  }
  return fd;
}

Result<Details> decode_details(std::span<const std::byte> bytes) {
  const ReadAt read = [bytes](uint64_t offset, std::span<std::byte> to) {
    if (!to.empty()) std::memcpy(to.data(), bytes.data() + offset, to.size());
    return Status();
  };
  return Decoder(bytes.size(), read).decode();
}

Result<Details> read_details(int fd, uint64_t bytes) {
  // A file of another kind could be changed while it is read, or never answer.
  if ((::fcntl(fd, F_GET_SEALS) & kSeals) != kSeals || ::fcntl(fd, F_GET_SEALS) < 0) {
    return not_details("no sealed memfd");
  }
  struct stat about {};
  if (bytes > kMaxDetailsBytes || ::fstat(fd, &about) != 0 ||
      static_cast<uint64_t>(about.st_size) != bytes) {
    return not_details(fmt::format("a memfd of {} bytes, said to be {}, at most {}", about.st_size,
                                   bytes, kMaxDetailsBytes));
  }
  const ReadAt read = [fd](uint64_t offset, std::span<std::byte> to) {
    return pread_all(fd, offset, to);
  };
  try {
    return Decoder(bytes, read).decode();
  } catch (const std::bad_alloc&) {
    return error(Code::kResourceExhausted, "no memory for {} of a checkpoint's details",
                 format_bytes(bytes));
  }
}

}  // namespace elixir::checkpoints
