#include "planner/estimate/safetensors_header.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

namespace elixir::planner {
namespace {

using nlohmann::json;

struct Dtype {
  std::string_view name;
  uint64_t bytes;
  bool floating;
};

constexpr std::array kDtypes = {
    Dtype{"BF16", 2, true},    Dtype{"F16", 2, true},     Dtype{"F32", 4, true},
    Dtype{"F64", 8, true},     Dtype{"F8_E4M3", 1, true}, Dtype{"F8_E5M2", 1, true},
    Dtype{"F8_E8M0", 1, true}, Dtype{"BOOL", 1, false},   Dtype{"U8", 1, false},
    Dtype{"I8", 1, false},     Dtype{"U16", 2, false},    Dtype{"I16", 2, false},
    Dtype{"U32", 4, false},    Dtype{"I32", 4, false},    Dtype{"U64", 8, false},
    Dtype{"I64", 8, false},
};

const Dtype* find_dtype(std::string_view name) {
  const auto found = std::find_if(kDtypes.begin(), kDtypes.end(),
                                  [&](const Dtype& dtype) { return dtype.name == name; });
  return found == kDtypes.end() ? nullptr : &*found;
}

// One entry of the header, as it stands there.
struct Entry {
  std::string name;
  std::string dtype;
  std::vector<uint64_t> shape, data_offsets;
  bool has_shape = false;

  uint64_t begin() const { return data_offsets[0]; }
  uint64_t end() const { return data_offsets[1]; }
};

// Buffers that published files hold beside parameters.
bool is_known_buffer(const Entry& entry) {
  const std::string_view name = entry.name;
  const bool mask = name.ends_with("attn.bias") && entry.shape.size() == 4;
  return mask || name.ends_with("attn.masked_bias") || name.ends_with("rotary_emb.inv_freq");
}

// {NAME: {"dtype": "F32", "shape": [..], "data_offsets": [begin, end]}, ..,
//  "__metadata__": {KEY: "text", ..}}. Event by event, so that no tree of foreign JSON is built.
class HeaderEvents : public nlohmann::json_sax<json> {
 public:
  std::vector<Entry>& entries() { return entries_; }
  const std::string& failure() const { return failure_; }

  bool start_object(size_t) override {
    if (depth_ >= kInEntry) return fail("an object where none belongs");
    if (depth_ == kInHeader && !metadata_) {
      if (entries_.size() == kMaxTensors) return fail("more tensors than any model has");
      entries_.emplace_back().name = name_;
    }
    ++depth_;
    return true;
  }
  bool end_object() override {
    --depth_;
    if (depth_ == kInHeader) metadata_ = false;
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
    if (field_ != "dtype" || !entries_.back().dtype.empty()) return fail_field("text");
    entries_.back().dtype = text;
    return true;
  }
  bool start_array(size_t) override {
    if (depth_ != kInEntry || metadata_) return fail("a list where none belongs");
    Entry& entry = entries_.back();
    list_ = field_ == "shape" ? &entry.shape : &entry.data_offsets;
    if ((field_ != "shape" && field_ != "data_offsets") || !list_->empty()) {
      return fail_field("a list");
    }
    entry.has_shape = entry.has_shape || field_ == "shape";
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
  bool null() override { return fail_field("null"); }
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

  bool fail(std::string what) {
    if (failure_.empty()) failure_ = std::move(what);
    return false;
  }
  bool fail_field(const char* what) {
    return fail(fmt::format("{} where none belongs ('{}' of '{:.100}')", what, field_, name_));
  }

  std::vector<Entry> entries_;
  int depth_ = 0;
  bool metadata_ = false;     // within "__metadata__"
  std::string name_, field_;  // the keys of the header and of the entry
  std::vector<uint64_t>* list_ = nullptr;
  std::string failure_;
};

Status bad(const Entry& entry, std::string_view what) {
  return error(Code::kBadInput, "tensor '{:.100}': {}", entry.name, what);
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
Status check_entry(const Entry& entry, uint64_t data_bytes) {
  const Dtype* const dtype = find_dtype(entry.dtype);
  if (dtype == nullptr) {
    return bad(entry, fmt::format("its dtype is '{:.20}', which is not known", entry.dtype));
  }
  if (!entry.has_shape) return bad(entry, "it has no shape");
  if (entry.data_offsets.size() != 2) return bad(entry, "data_offsets are not two numbers");
  if (entry.begin() > entry.end() || entry.end() > data_bytes) {
    return bad(entry, fmt::format("its bytes {} to {} are not within the {} that the file holds",
                                  entry.begin(), entry.end(), data_bytes));
  }
  const std::optional<uint64_t> numel = numel_of(entry.shape);
  uint64_t bytes = 0;
  if (!numel.has_value() || __builtin_mul_overflow(*numel, dtype->bytes, &bytes)) {
    return bad(entry, "its shape has more elements than can be counted");
  }
  if (bytes != entry.end() - entry.begin()) {
    return bad(entry, fmt::format("its shape takes {} bytes, its offsets leave {}", bytes,
                                  entry.end() - entry.begin()));
  }
  return Status();
}

Status check_names(const std::vector<Entry>& entries) {
  std::vector<std::string_view> names;
  for (const Entry& entry : entries) names.push_back(entry.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return Status();
  return error(Code::kBadInput, "tensor '{:.100}': it is listed twice", *twice);
}

}  // namespace

Result<StoredModel> parse_safetensors_header(std::string_view header, uint64_t data_bytes) {
  HeaderEvents events;
  if (!json::sax_parse(header, &events)) {
    return error(Code::kBadInput, "not a safetensors header: {}",
                 events.failure().empty() ? "not JSON" : events.failure());
  }
  std::vector<Entry>& entries = events.entries();
  for (const Entry& entry : entries) ELIXIR_RETURN_IF_ERROR(check_entry(entry, data_bytes));
  ELIXIR_RETURN_IF_ERROR(check_names(entries));
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tuple(a.begin(), a.end(), std::string_view(a.name)) <
           std::tuple(b.begin(), b.end(), std::string_view(b.name));
  });
  StoredModel model;
  uint64_t end = 0;
  for (Entry& entry : entries) {
    if (entry.begin() < end) return bad(entry, "its bytes are another tensor's as well");
    end = entry.end();
    // One of no elements has nothing to train.
    const bool empty = entry.begin() == entry.end();
    if (empty || !find_dtype(entry.dtype)->floating || is_known_buffer(entry)) {
      ++model.buffers;
      model.buffer_bytes += entry.end() - entry.begin();
    } else {
      model.parameters.push_back({std::move(entry.name), {entry.shape.begin(), entry.shape.end()}});
    }
  }
  return model;
}

}  // namespace elixir::planner
