#include "planner/estimate/quantised.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

namespace elixir::planner {
namespace {

using checkpoints::TensorEntry;
using ByName = std::map<std::string, const TensorEntry*, std::less<>>;

constexpr int64_t kWordBits = 32;  // GPTQ, AWQ and compressed-tensors pack into I32
constexpr int64_t kUsualBits = 4;

// What quantisers keep beside their weights.
constexpr std::string_view kBeside[] = {".scales",
                                        ".SCB",
                                        ".absmax",
                                        ".nested_absmax",
                                        ".quant_map",
                                        "_scales",
                                        ".weight_scale",
                                        ".weight_scale_2",
                                        ".input_scale",
                                        ".nested_quant_map",
                                        ".output_scale",
                                        ".k_scale",
                                        ".v_scale",
                                        ".qzeros",
                                        ".weight_scale_inv",
                                        ".g_idx",
                                        ".scale",
                                        ".scale_inv",
                                        ".zeros",
                                        ".weight_zero_point",
                                        ".weight_global_scale",
                                        ".input_global_scale"};

bool is_beside(std::string_view name) {
  return std::any_of(std::begin(kBeside), std::end(kBeside),
                     [&](std::string_view suffix) { return name.ends_with(suffix); });
}

// A quantised weight, and the shape that it stands for.
struct Weight {
  std::string type;
  std::vector<int64_t> shape;
};

// The tensor NAME.SUFFIX in place of NAME.OWN, if it is a matrix; else null.
const TensorEntry* matrix_beside(const TensorEntry& tensor, std::string_view own,
                                 std::string_view suffix, const ByName& all) {
  std::string name = tensor.name.substr(0, tensor.name.size() - own.size());
  const auto found = all.find(name += suffix);
  const bool matrix = found != all.end() && found->second->shape.size() == 2;
  return matrix ? found->second : nullptr;
}

// Foreign sizes must not wrap.
int64_t product(int64_t a, int64_t b) {
  constexpr int64_t kMost = int64_t{1} << 60;
  int64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? kMost : std::min(result, kMost);
}

// Of a value, if `words` hold so many; empty: that is no number of bits.
std::optional<int64_t> bits_of(int64_t words, int64_t values) {
  const int64_t bits = values > 0 ? product(kWordBits, words) / values : 0;
  return bits >= 2 && bits <= 8 ? std::optional(bits) : std::nullopt;
}

// GPTQ packs along the inputs, [in * bits / 32, out]; AWQ along the outputs, [in, out * bits / 32].
Weight qweight(const TensorEntry& tensor, const ByName& all) {
  const int64_t rows = tensor.shape[0], columns = tensor.shape[1];
  const TensorEntry* const scales = matrix_beside(tensor, ".qweight", ".scales", all);
  const TensorEntry* const zeros = matrix_beside(tensor, ".qweight", ".qzeros", all);
  if (scales != nullptr && scales->shape[1] != columns) {
    if (const auto bits = bits_of(columns, scales->shape[1])) {
      return {fmt::format("{}-bit (AWQ)", *bits), {product(rows, scales->shape[1])}};
    }
  }
  const int64_t bits =
      zeros == nullptr ? kUsualBits : bits_of(zeros->shape[1], columns).value_or(kUsualBits);
  return {fmt::format("{}-bit (GPTQ)", bits), {product(product(rows, columns), kWordBits) / bits}};
}

bool has_prefix(const ByName& all, const std::string& prefix) {
  const auto found = all.lower_bound(prefix);
  return found != all.end() && found->first.starts_with(prefix);
}

std::optional<Weight> quantised(const TensorEntry& tensor, const ByName& all) {
  const std::string_view name = tensor.name, dtype = tensor.dtype->name;
  const auto bytes = static_cast<int64_t>(tensor.end - tensor.begin);
  const bool matrix = tensor.shape.size() >= 2;
  // bitsandbytes' 4-bit weights are bytes, whatever type they are stored as.
  if (has_prefix(all, tensor.name + ".quant_state.bitsandbytes__") ||
      all.contains(tensor.name + ".absmax")) {
    return Weight{"4-bit (bitsandbytes)", {product(2, bytes)}};
  }
  if (checkpoints::is_known_buffer(tensor) || is_beside(name)) return std::nullopt;
  if (dtype == "I32" && tensor.shape.size() == 2 && name.ends_with(".qweight")) {
    return qweight(tensor, all);
  }
  if ((dtype == "I32" || dtype == "U8") && name.ends_with(".weight_packed")) {
    return Weight{"4-bit (compressed-tensors)", {product(2, bytes)}};
  }
  constexpr std::string_view kBlocks = "_blocks";
  if (dtype == "U8" && name.ends_with(kBlocks) &&
      all.contains(tensor.name.substr(0, name.size() - kBlocks.size()) + "_scales")) {
    return Weight{"4-bit (MXFP4)", {product(2, bytes)}};
  }
  if (dtype == "I8" && (matrix || name.ends_with("weight"))) return Weight{"int8", tensor.shape};
  if (dtype == "U8" && matrix && name.ends_with("weight")) return Weight{"uint8", tensor.shape};
  if (dtype == "F8_E4M3" || dtype == "F8_E5M2") {
    return Weight{fmt::format("fp8 ({})", dtype), tensor.shape};
  }
  return std::nullopt;
}

void count(SortedTensors& sorted, const TensorEntry& tensor, const Weight& weight) {
  auto found = std::find_if(sorted.quantised.begin(), sorted.quantised.end(),
                            [&](const auto& known) { return known.type == weight.type; });
  if (found == sorted.quantised.end()) {
    found = sorted.quantised.insert(found, {.type = weight.type});
  }
  ELIXIR_CHECK(tensor.end > tensor.begin, "{} holds nothing", tensor.name);
  ++found->tensors;
  found->params += NamedShape{tensor.name, weight.shape}.numel();
  found->bytes += tensor.end - tensor.begin;
}

}  // namespace

SortedTensors sort_tensors(std::vector<TensorEntry> tensors) {
  ByName all;
  for (const TensorEntry& tensor : tensors) all.emplace(tensor.name, &tensor);
  std::vector<std::optional<Weight>> weights;
  for (const TensorEntry& tensor : tensors) weights.push_back(quantised(tensor, all));
  const bool any = std::any_of(weights.begin(), weights.end(),
                               [](const auto& weight) { return weight.has_value(); });
  SortedTensors sorted;
  for (size_t i = 0; i < tensors.size(); ++i) {
    TensorEntry& tensor = tensors[i];
    const bool empty = tensor.begin == tensor.end;  // nothing to train
    const bool parameter =
        weights[i] || (tensor.dtype->floating && !(any && is_beside(tensor.name)));
    if (empty || !parameter || checkpoints::is_known_buffer(tensor)) {
      ++sorted.buffers;
      sorted.buffer_bytes += tensor.end - tensor.begin;
      continue;
    }
    if (weights[i]) count(sorted, tensor, *weights[i]);
    sorted.parameters.push_back(
        {tensor.name, weights[i] ? std::move(weights[i]->shape) : tensor.shape});
  }
  return sorted;
}

}  // namespace elixir::planner
