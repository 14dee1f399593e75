#include "checkpoint/safetensors.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

#include "checkpoint/json_values.h"

namespace elixir::checkpoints {
namespace {

using nlohmann::json;

constexpr uint64_t kLengthBytes = 8;  // little-endian, before the header
constexpr uint64_t kHeaderAlignment = 64;

constexpr std::array kDtypes = {
    Dtype{"BF16", 2, true},    Dtype{"F16", 2, true},     Dtype{"F32", 4, true},
    Dtype{"F64", 8, true},     Dtype{"F8_E4M3", 1, true}, Dtype{"F8_E5M2", 1, true},
    Dtype{"F8_E8M0", 1, true}, Dtype{"BOOL", 1, false},   Dtype{"U8", 1, false},
    Dtype{"I8", 1, false},     Dtype{"U16", 2, false},    Dtype{"I16", 2, false},
    Dtype{"U32", 4, false},    Dtype{"I32", 4, false},    Dtype{"U64", 8, false},
    Dtype{"I64", 8, false},
};

// One entry of the header, as it stands there.
struct Entry {
  std::string name = {}, dtype = {};
  std::vector<uint64_t> shape = {}, data_offsets = {};
  bool has_shape = false;
};

Status bad(std::string_view name, std::string_view what) {
  return error(Code::kBadInput, "tensor '{:.100}': {}", name, what);
}

// Of a shape; nullopt: more than 63 bits.
std::optional<uint64_t> numel_of(const std::vector<uint64_t>& shape) {
  uint64_t numel = 1;
  for (uint64_t size : shape) {
    if (size > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    if (__builtin_mul_overflow(numel, size, &numel)) return std::nullopt;
  }
  return numel;
}

// What the entry says of itself agrees with itself and with the file.
Result<TensorEntry> checked(const Entry& entry, uint64_t data_bytes) {
  const Dtype* const dtype = find_dtype(entry.dtype);
  if (dtype == nullptr) {
    return bad(entry.name, fmt::format("its dtype is '{:.20}', which is not known", entry.dtype));
  }
  if (!entry.has_shape) return bad(entry.name, "it has no shape");
  if (entry.data_offsets.size() != 2) return bad(entry.name, "data_offsets are not two numbers");
  const uint64_t begin = entry.data_offsets[0], end = entry.data_offsets[1];
  if (begin > end || end > data_bytes) {
    return bad(entry.name, fmt::format("its bytes {} to {} are not within the {} that the file "
                                       "holds",
                                       begin, end, data_bytes));
  }
  const std::optional<uint64_t> numel = numel_of(entry.shape);
  uint64_t bytes = 0;
  if (!numel.has_value() || __builtin_mul_overflow(*numel, dtype->bytes, &bytes)) {
    return bad(entry.name, "its shape has more elements than can be counted");
  }
  if (bytes != end - begin) {
    return bad(entry.name,
               fmt::format("its shape takes {} bytes, its offsets leave {}", bytes, end - begin));
  }
  return TensorEntry{entry.name, dtype, {entry.shape.begin(), entry.shape.end()}, begin, end};
}

// {NAME: {"dtype": "F32", "shape": [..], "data_offsets": [begin, end]}, ..,
//  "__metadata__": {KEY: "text", ..}}. Event by event, and each tensor is checked where it ends, so
// that foreign JSON takes no more memory than tensors of its length would.
class HeaderEvents : public nlohmann::json_sax<json> {
 public:
  explicit HeaderEvents(uint64_t data_bytes) : data_bytes_(data_bytes) {}

  std::vector<TensorEntry>& tensors() { return tensors_; }
  const Status& status() const { return status_; }

  bool start_object(size_t) override {
    if (depth_ >= kInEntry) return fail("an object where none belongs");
    if (depth_ == kInHeader && !metadata_) {
      if (tensors_.size() == kMaxTensors) return fail("more tensors than any model has");
      entry_ = {.name = name_};
    }
    ++depth_;
    return true;
  }
  bool end_object() override {
    --depth_;
    if (depth_ != kInHeader || std::exchange(metadata_, false)) return true;
    Result<TensorEntry> tensor = checked(entry_, data_bytes_);
    if (!tensor.ok()) {
      status_ = tensor.status();
      return false;
    }
    tensors_.push_back(std::move(*tensor));
    return true;
  }
  bool key(std::string& key) override {
    if (key.size() > kMaxNameBytes && !metadata_) return fail("a name that is too long");
    if (depth_ == kInHeader) {
      name_ = key;
      metadata_ = key == "__metadata__";
    } else {
      field_ = key;
    }
    return true;
  }
  bool string(std::string& text) override {
    if (depth_ != kInEntry) return fail("text where a tensor's description belongs");
    if (metadata_) return true;
    if (field_ != "dtype" || !entry_.dtype.empty()) return fail_field("text");
    entry_.dtype = text;
    return true;
  }
  bool start_array(size_t) override {
    if (depth_ != kInEntry || metadata_) return fail("a list where none belongs");
    list_ = field_ == "shape" ? &entry_.shape : &entry_.data_offsets;
    if ((field_ != "shape" && field_ != "data_offsets") || !list_->empty()) {
      return fail_field("a list");
    }
    entry_.has_shape = entry_.has_shape || field_ == "shape";
    ++depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool number_unsigned(uint64_t value) override {
    if (depth_ != kInList) return fail_field("a number");
    if (list_->size() == kMaxDimensions) return fail("more dimensions than any tensor has");
    list_->push_back(value);
    return true;
  }
  bool null() override {
    // As if it were not there: the format's own reader takes it so.
    return (depth_ == kInHeader && metadata_) || fail_field("null");
  }
  bool boolean(bool) override { return fail_field("true or false"); }
  bool number_integer(int64_t) override { return fail_field("a negative number"); }
  bool number_float(double, const std::string&) override {
    return fail_field("a number that is not whole, or too large");
  }
  bool binary(json::binary_t&) override { return fail("binary data"); }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return fail(fmt::format("not JSON (byte {})", position));
  }

 private:
  static constexpr int kInHeader = 1, kInEntry = 2, kInList = 3;  // depth_; 0: before it

  bool fail(std::string_view what) {
    if (status_.ok()) status_ = error(Code::kBadInput, "not a safetensors header: {}", what);
    return false;
  }
  bool fail_field(const char* what) {
    return fail(fmt::format("{} where none belongs ('{:.100}' of '{:.100}')", what, field_, name_));
  }

  const uint64_t data_bytes_;
  std::vector<TensorEntry> tensors_;
  int depth_ = 0;
  bool metadata_ = false;     // within "__metadata__"
  std::string name_, field_;  // the keys of the header and of the entry
  Entry entry_;
  std::vector<uint64_t>* list_ = nullptr;
  Status status_;
};

Status check_names(const std::vector<TensorEntry>& tensors) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const TensorEntry& tensor : tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  return twice == names.end() ? Status() : bad(*twice, "it is listed twice");
}

// REQUIRES: in the order of their bytes.
Status check_bytes(const std::vector<TensorEntry>& tensors, uint64_t data_bytes) {
  uint64_t end = 0;
  for (const TensorEntry& tensor : tensors) {
    if (tensor.begin < end) return bad(tensor.name, "its bytes are another tensor's as well");
    if (tensor.begin > end) {
      return bad(tensor.name,
                 fmt::format("the {} bytes before it belong to no tensor", tensor.begin - end));
    }
    end = tensor.end;
  }
  if (end == data_bytes) return Status();
  const std::string what = fmt::format("{} bytes belong to no tensor", data_bytes - end);
  if (tensors.empty()) return Status(Code::kBadInput, what);
  return bad(tensors.back().name, "behind it " + what);
}

}  // namespace

const Dtype* find_dtype(std::string_view name) {
  const auto found = std::find_if(kDtypes.begin(), kDtypes.end(),
                                  [&](const Dtype& dtype) { return dtype.name == name; });
  return found == kDtypes.end() ? nullptr : &*found;
}

const Dtype& dtype_of(ComputeType type) {
  return *find_dtype(type == ComputeType::kBf16   ? "BF16"
                     : type == ComputeType::kFp16 ? "F16"
                                                  : "F32");
}

bool is_known_buffer(const TensorEntry& tensor) {
  const std::string_view name = tensor.name;
  const bool of_mask = name.ends_with("attn.bias") || name.ends_with("attention.bias");
  return (of_mask && tensor.shape.size() == 4) || name.ends_with("attn.masked_bias") ||
         name.ends_with("attention.masked_bias") || name.ends_with("rotary_emb.inv_freq");
}

Result<std::vector<TensorEntry>> parse_header(std::string_view text, uint64_t data_bytes) {
  // The format has room for spaces behind the JSON alone.
  if (!text.starts_with('{')) return error(Code::kBadInput, "not a safetensors header: not JSON");
  HeaderEvents events(data_bytes);
  if (!json::sax_parse(text, &events)) {
    ELIXIR_CHECK(!events.status().ok(), "a parser that stops says why");
    return events.status();
  }
  std::vector<TensorEntry>& tensors = events.tensors();
  ELIXIR_RETURN_IF_ERROR(check_names(tensors));
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  ELIXIR_RETURN_IF_ERROR(check_bytes(tensors, data_bytes));
  return std::move(tensors);
}

Status read_bytes(int fd, uint64_t offset, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = ::pread(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_status(Code::kBadInput, "cannot read");
    if (got == 0) return error(Code::kBadInput, "it ended at byte {} while it was read", offset);
    offset += static_cast<uint64_t>(got);
    bytes = bytes.subspan(static_cast<size_t>(got));
  }
  return Status();
}

Result<Header> read_header(int fd) {
  struct stat about {};
  if (::fstat(fd, &about) != 0) return errno_status(Code::kBadInput, "cannot be read");
  if (!S_ISREG(about.st_mode)) return error(Code::kBadInput, "not an ordinary file");
  const auto file_bytes = static_cast<uint64_t>(about.st_size);
  if (file_bytes < kLengthBytes) {
    return error(Code::kBadInput,
                 "{} bytes are not a safetensors file, which begins with a length of {}",
                 file_bytes, kLengthBytes);
  }
  std::array<std::byte, kLengthBytes> length;
  ELIXIR_RETURN_IF_ERROR(read_bytes(fd, 0, length));
  uint64_t header_bytes = 0;
  for (uint64_t i = 0; i < kLengthBytes; ++i) {
    header_bytes |= std::to_integer<uint64_t>(length[i]) << (8 * i);
  }
  const uint64_t rest = file_bytes - kLengthBytes;
  if (header_bytes > rest || header_bytes > kMaxHeaderBytes) {
    return error(Code::kBadInput,
                 "not a safetensors file, or cut off: its header would be {} bytes long; the file "
                 "has {}, and {} are the most",
                 header_bytes, rest, kMaxHeaderBytes);
  }
  std::string text(header_bytes, '\0');
  ELIXIR_RETURN_IF_ERROR(read_bytes(fd, kLengthBytes, std::as_writable_bytes(std::span(text))));
  Result<std::vector<TensorEntry>> tensors = parse_header(text, rest - header_bytes);
  if (!tensors.ok()) return tensors.status();
  return Header{std::move(*tensors), kLengthBytes + header_bytes};
}

std::string encode_header(std::span<const TensorEntry> tensors) {
  // "pt": transformers opens no file that does not say for which framework it was written.
  std::string text = R"({"__metadata__":{"format":"pt"})";
  for (const TensorEntry& tensor : tensors) {
    text += fmt::format(R"(,{}:{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})",
                        json(tensor.name).dump(-1, ' ', false, json::error_handler_t::replace),
                        tensor.dtype->name, json(tensor.shape).dump(), tensor.begin, tensor.end);
  }
  text += '}';
  const uint64_t over = (kLengthBytes + text.size()) % kHeaderAlignment;
  if (over != 0) text.append(kHeaderAlignment - over, ' ');
  std::string header;
  for (uint64_t i = 0; i < kLengthBytes; ++i) {
    header += static_cast<char>(text.size() >> (8 * i) & 0xff);
  }
  return header + text;
}

Result<WeightMap> parse_index(std::string_view text) {
  constexpr size_t kMaxMetadata = 100'000;
  const Status within = check_json_limits(text, {.values = 2 * kMaxTensors + kMaxMetadata});
  if (!within.ok()) {
    return error(Code::kBadInput, "not an index of safetensors files, which has a 'weight_map': {}",
                 within.message());
  }
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
  WeightMap files;
  for (const auto& [tensor, value] : map->items()) {
    const std::string file = value.is_string() ? value.get<std::string>() : "";
    if (file.empty() || file == "." || file == ".." || file.find('/') != std::string::npos ||
        file.find('\0') != std::string::npos) {
      return error(Code::kBadInput, "'weight_map' must name a file beside the index for '{:.100}'",
                   tensor);
    }
    files[file].insert(tensor);
    if (files.size() > kMaxFiles) return error(Code::kBadInput, "more than {} files", kMaxFiles);
  }
  return files;
}

}  // namespace elixir::checkpoints
