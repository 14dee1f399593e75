#include "checkpoint/file_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <unordered_set>

#include "base/check.h"

namespace elixir::checkpoints {
namespace {

using nlohmann::json;

constexpr size_t kMaxParameterName =
    1024;  // with "state." and ".master_low" it is a tensor's still
static_assert(kMaxParameterName + std::string_view("state..master_low").size() <= kMaxNameBytes);

// An array before it has a place. Those of a unit go into the same file.
struct Array {
  std::string name;
  const Dtype* dtype = nullptr;
  std::span<const int64_t> shape = {};
  uint32_t unit = 0;
  enum class Role : uint8_t { kCount, kOfChunk, kExtra } role = Role::kOfChunk;
  PlannedTensor planned = {};  // its bytes; its file and offset in the end
};

// False: it does not fit 63 bits, or a dimension is negative.
bool bytes_of(std::span<const int64_t> shape, uint64_t element_bytes, uint64_t* bytes) {
  int64_t product = static_cast<int64_t>(element_bytes);
  bool fits = shape.size() <= kMaxDimensions;
  // A dimension of 0 makes the product 0 whatever the others are, so it comes to mind first.
  const bool empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
  for (const int64_t dimension : shape) {
    fits = fits && dimension >= 0;
    if (!empty) fits = fits && !__builtin_mul_overflow(product, dimension, &product);
  }
  *bytes = empty ? 0 : static_cast<uint64_t>(product);
  return fits;
}

// JSON has no other texts.
bool is_utf8(const std::string& text) {
  try {
    return !json(text).dump().empty();
  } catch (const json::exception&) {
    return false;
  }
}

class Names {
 public:
  Status add(const std::string& name) {
    if (name.empty() || name.size() > kMaxParameterName) {
      return error(Code::kBadInput, "a tensor's name of {} bytes: 1 to {} are possible",
                   name.size(), kMaxParameterName);
    }
    if (!is_utf8(name) || name == "__metadata__") {
      return error(Code::kBadInput, "a safetensors file cannot have a tensor named '{}'",
                   json(name).dump(-1, ' ', true, json::error_handler_t::replace));
    }
    if (names_.insert(name).second) return Status();
    return error(Code::kBadInput, "there are two tensors named '{}'", name);
  }

 private:
  std::unordered_set<std::string_view> names_;
};

Status check_parameters(std::span<const SavedParameter> parameters, const FileChoice& choice,
                        Names& names) {
  for (const SavedParameter& parameter : parameters) {
    ELIXIR_RETURN_IF_ERROR(names.add(parameter.name));
    uint64_t bytes = 0;
    const uint64_t element = element_bytes(choice.type);
    if (!bytes_of(parameter.shape, element, &bytes) || bytes / element != parameter.numel) {
      return error(Code::kBadInput, "parameter '{}' has {} elements, and a shape of [{}]",
                   parameter.name, parameter.numel, fmt::join(parameter.shape, ", "));
    }
  }
  return Status();
}

// In the order of chunk and offset.
std::vector<uint32_t> order_of(std::span<const SavedParameter> parameters) {
  std::vector<uint32_t> order(parameters.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return std::pair(parameters[a].chunk, parameters[a].offset) <
           std::pair(parameters[b].chunk, parameters[b].offset);
  });
  return order;
}

Array array_of(const SavedParameter& parameter, uint32_t number, StateKind kind,
               const Dtype* dtype) {
  const bool param = kind == StateKind::kParam;
  Array array;
  array.name =
      param ? parameter.name : fmt::format("state.{}.{}", parameter.name, state_name(kind));
  array.dtype = dtype;
  array.shape = parameter.shape;
  array.planned.bytes = parameter.numel * dtype->bytes;
  array.unit = parameter.chunk;
  array.planned.parameter = number;
  array.planned.kind = kind;
  return array;
}

Result<std::vector<Array>> model_arrays(std::span<const SavedParameter> parameters,
                                        std::span<const uint32_t> order,
                                        std::span<const ExtraTensor> extras,
                                        const FileChoice& choice) {
  std::vector<Array> arrays;
  for (const uint32_t number : order) {
    if (!parameters[number].trained && !choice.frozen) continue;
    arrays.push_back(
        array_of(parameters[number], number, StateKind::kParam, &dtype_of(choice.type)));
  }
  uint32_t unit = arrays.empty() ? 0 : arrays.back().unit;
  for (uint32_t i = 0; i < extras.size(); ++i) {
    const ExtraTensor& extra = extras[i];
    Array array{.name = extra.name, .dtype = extra.dtype, .shape = extra.shape};
    if (extra.dtype == nullptr ||
        !bytes_of(extra.shape, extra.dtype->bytes, &array.planned.bytes)) {
      return error(Code::kBadInput, "tensor '{}' cannot have a shape of [{}]", extra.name,
                   fmt::join(extra.shape, ", "));
    }
    array.unit = ++unit;
    array.role = Array::Role::kExtra;
    array.planned.parameter = i;
    arrays.push_back(std::move(array));
  }
  return arrays;
}

// A chunk's arrays kind by kind, as they lie in memory.
std::vector<Array> optimizer_arrays(std::span<const SavedParameter> parameters,
                                    std::span<const uint32_t> order, ComputeType type) {
  static constexpr StateKind kKinds[] = {StateKind::kExpAvg, StateKind::kExpAvgSq,
                                         StateKind::kMaster, StateKind::kMasterLow};
  const Dtype* const f32 = find_dtype("F32");
  std::vector<Array> arrays;
  for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    const uint32_t chunk = parameters[order[begin]].chunk;
    while (end < order.size() && parameters[order[end]].chunk == chunk) ++end;
    for (size_t i = begin; i < end; ++i) {
      const SavedParameter& parameter = parameters[order[i]];
      if (!parameter.trained) continue;
      Array count = array_of(parameter, order[i], StateKind::kExpAvg, f32);
      count.name = fmt::format("state.{}.step", parameter.name);
      count.shape = {};
      count.planned.bytes = f32->bytes;
      count.role = Array::Role::kCount;
      arrays.push_back(std::move(count));
    }
    for (const StateKind kind : kKinds) {
      if (kind == StateKind::kMaster && type != ComputeType::kFp16) continue;
      if (kind == StateKind::kMasterLow && type != ComputeType::kBf16) continue;
      const Dtype* const dtype = kind == StateKind::kMasterLow ? find_dtype("I16") : f32;
      for (size_t i = begin; i < end; ++i) {
        const SavedParameter& parameter = parameters[order[i]];
        if (parameter.trained) arrays.push_back(array_of(parameter, order[i], kind, dtype));
      }
    }
  }
  return arrays;
}

// Fills files one after the other with whole units. The number of files.
uint32_t choose_files(std::span<Array> arrays, uint64_t max_file_bytes) {
  uint32_t file = 0;
  uint64_t in_file = 0;
  for (size_t begin = 0, end = 0; begin < arrays.size(); begin = end) {
    uint64_t bytes = 0;
    while (end < arrays.size() && arrays[end].unit == arrays[begin].unit) {
      bytes += arrays[end++].planned.bytes;
    }
    if (in_file > 0 && (bytes > max_file_bytes || in_file > max_file_bytes - bytes)) {
      ++file;
      in_file = 0;
    }
    in_file += bytes;
    for (size_t i = begin; i < end; ++i) arrays[i].planned.file = file;
  }
  return file + 1;
}

// The counts of a file come first among its F32: one run of bytes.
void sort_by_width(std::span<Array> arrays) {
  const auto key = [](const Array& array) {
    return std::tuple(array.planned.file, -static_cast<int64_t>(array.dtype->bytes),
                      array.role != Array::Role::kCount);
  };
  std::stable_sort(arrays.begin(), arrays.end(),
                   [&](const Array& a, const Array& b) { return key(a) < key(b); });
}

// Gives the arrays of one file their offsets, and the file to the plan.
Status place_file(std::span<Array> arrays, const std::string& name, FilePlan& plan) {
  std::vector<TensorEntry> entries;
  entries.reserve(arrays.size());
  uint64_t end = 0;
  for (const Array& array : arrays) {
    entries.push_back({.name = array.name,
                       .dtype = array.dtype,
                       .shape = {array.shape.begin(), array.shape.end()},
                       .begin = end,
                       .end = end + array.planned.bytes});
    end += array.planned.bytes;
  }
  FilePlan::File file{.name = name, .header = encode_header(entries)};
  if (file.header.size() > kMaxHeaderBytes) {
    return error(Code::kBadInput, "{}: its header would have {} bytes, at most {} are possible",
                 name, file.header.size(), kMaxHeaderBytes);
  }
  file.bytes = file.header.size() + end;
  for (size_t i = 0; i < arrays.size(); ++i) {
    arrays[i].planned.file = static_cast<uint32_t>(plan.files.size());
    arrays[i].planned.offset = file.header.size() + entries[i].begin;
    ELIXIR_CHECK(arrays[i].planned.offset % arrays[i].dtype->bytes == 0, "{}: '{}' at {}", name,
                 arrays[i].name, arrays[i].planned.offset);
  }
  plan.bytes += file.bytes;
  plan.files.push_back(std::move(file));
  return Status();
}

void add_to_plan(const Array& array, FilePlan& plan) {
  const PlannedTensor& planned = array.planned;
  switch (array.role) {
    case Array::Role::kCount:
      plan.steps.push_back({planned.parameter, planned.file, planned.offset});
      return;
    case Array::Role::kExtra:
      plan.extras.push_back(planned);
      return;
    case Array::Role::kOfChunk:
      if (plan.chunks.size() <= array.unit) plan.chunks.resize(array.unit + size_t{1});
      plan.chunks[array.unit].push_back(planned);
  }
}

// `prefix`: "model" or "optimizer/optimizer".
Status place(std::vector<Array> arrays, const char* prefix, const FileChoice& choice,
             FilePlan& plan) {
  // Sums of bytes fit then: each of these is below 2^63.
  uint64_t bytes = 0;
  for (const Array& array : arrays) {
    bytes += array.planned.bytes;
    if (bytes < uint64_t{1} << 62) continue;
    return error(Code::kBadInput, "more bytes than a file system can hold");
  }
  const uint32_t files = choose_files(arrays, choice.max_file_bytes);
  if (arrays.size() > kMaxTensors || plan.files.size() + files > kMaxFiles) {
    return error(Code::kBadInput, "{} tensors in {} files; at most {} in {} are possible",
                 arrays.size(), plan.files.size() + files, kMaxTensors, kMaxFiles);
  }
  sort_by_width(arrays);
  size_t begin = 0;
  for (uint32_t file = 0; file < files; ++file) {
    size_t end = begin;
    while (end < arrays.size() && arrays[end].planned.file == file) ++end;
    const std::string name = fmt::format("{}-{:05}-of-{:05}.safetensors", prefix, file + 1, files);
    ELIXIR_RETURN_IF_ERROR(place_file(std::span(arrays).subspan(begin, end - begin), name, plan));
    begin = end;
  }
  ELIXIR_CHECK(begin == arrays.size(), "{} of {} tensors have a file", begin, arrays.size());
  for (const Array& array : arrays) add_to_plan(array, plan);
  return Status();
}

// As Hugging Face's save_pretrained writes it, names in the order of the alphabet.
Status write_index(std::span<const SavedParameter> parameters, std::span<const ExtraTensor> extras,
                   FilePlan& plan) {
  json weight_map = json::object();
  uint64_t total = 0;
  const auto add = [&](const std::string& name, const PlannedTensor& planned) {
    weight_map[name] = plan.files[planned.file].name;
    total += planned.bytes;
  };
  for (const std::vector<PlannedTensor>& chunk : plan.chunks) {
    for (const PlannedTensor& planned : chunk) add(parameters[planned.parameter].name, planned);
  }
  for (const PlannedTensor& planned : plan.extras) add(extras[planned.parameter].name, planned);
  const json index = {{"metadata", {{"total_size", total}}}, {"weight_map", std::move(weight_map)}};
  plan.index = index.dump(2) + "\n";
  if (plan.index.size() <= kMaxIndexBytes) return Status();
  return error(Code::kBadInput, "the index would have {} bytes, at most {} are possible",
               plan.index.size(), kMaxIndexBytes);
}

}  // namespace

bool has_numel(std::span<const int64_t> shape, uint64_t numel) {
  uint64_t product = 0;
  return bytes_of(shape, /*element_bytes=*/1, &product) && product == numel;
}

Result<FilePlan> plan_files(std::span<const SavedParameter> parameters,
                            std::span<const ExtraTensor> extras, const FileChoice& choice) {
  if (parameters.empty() && extras.empty()) {
    return error(Code::kBadInput, "a model without a tensor cannot be saved");
  }
  Names names;
  ELIXIR_RETURN_IF_ERROR(check_parameters(parameters, choice, names));
  for (const ExtraTensor& extra : extras) ELIXIR_RETURN_IF_ERROR(names.add(extra.name));
  const std::vector<uint32_t> order = order_of(parameters);

  FilePlan plan;
  if (choice.model) {
    Result<std::vector<Array>> model = model_arrays(parameters, order, extras, choice);
    if (!model.ok()) return model.status();
    ELIXIR_RETURN_IF_ERROR(place(std::move(*model), "model", choice, plan));
    ELIXIR_RETURN_IF_ERROR(write_index(parameters, extras, plan));  // of what is planned so far
  }
  std::vector<Array> states;
  if (choice.optimizer_states) states = optimizer_arrays(parameters, order, choice.type);
  if (states.empty() && !choice.model) {
    return error(Code::kBadInput, "states alone are to be saved, and there are none");
  }
  if (states.empty()) return plan;
  ELIXIR_RETURN_IF_ERROR(place(std::move(states), "optimizer/optimizer", choice, plan));
  return plan;
}

}  // namespace elixir::checkpoints
