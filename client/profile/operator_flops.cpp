#include "client/profile/operator_flops.h"

#include <ATen/core/TensorBody.h>

#include <functional>
#include <string_view>
#include <unordered_map>

namespace elixir {
namespace {

// The arguments of one call.
class Arguments {
 public:
  Arguments(const std::vector<c10::IValue>& stack, size_t count)
      : first_(stack.data() + (stack.size() - count)) {}
  const at::Tensor& tensor(size_t i) const { return first_[i].toTensor(); }
  const c10::IValue& value(size_t i) const { return first_[i]; }

 private:
  const c10::IValue* first_;
};

// a [..., m, k] by b [..., k, n].
double product(const at::Tensor& a, const at::Tensor& b) {
  return 2.0 * static_cast<double>(a.numel()) * static_cast<double>(b.size(-1));
}

// `count` products of [queries, head] by [head, keys] for each head of each sequence.
double attention(const at::Tensor& query, const at::Tensor& key, double count) {
  return count * 2.0 * static_cast<double>(query.numel()) * static_cast<double>(key.size(-2));
}

// Each element of the output takes one product with a filter of weight [out, in / groups, ...].
double convolution(double outputs, const at::Tensor& weight) {
  return 2.0 * outputs * static_cast<double>(weight.numel()) / static_cast<double>(weight.size(0));
}

using Count = std::function<double(const Arguments&)>;

const std::unordered_map<std::string_view, Count>& counts() {
  static const std::unordered_map<std::string_view, Count> all = [] {
    std::unordered_map<std::string_view, Count> result;
    for (const char* name : {"aten::mm", "aten::bmm"}) {
      result[name] = [](const Arguments& a) { return product(a.tensor(0), a.tensor(1)); };
    }
    result["aten::linear"] = [](const Arguments& a) {
      return product(a.tensor(0), a.tensor(1).t());
    };
    for (const char* name : {"aten::addmm", "aten::baddbmm"}) {
      result[name] = [](const Arguments& a) { return product(a.tensor(1), a.tensor(2)); };
    }
    for (const char* name : {"aten::_scaled_dot_product_flash_attention_for_cpu",
                             "aten::_scaled_dot_product_flash_attention",
                             "aten::_scaled_dot_product_efficient_attention",
                             "aten::_scaled_dot_product_cudnn_attention"}) {
      result[name] = [](const Arguments& a) { return attention(a.tensor(0), a.tensor(1), 2); };
    }
    for (const char* name : {"aten::_scaled_dot_product_flash_attention_for_cpu_backward",
                             "aten::_scaled_dot_product_flash_attention_backward",
                             "aten::_scaled_dot_product_efficient_attention_backward",
                             "aten::_scaled_dot_product_cudnn_attention_backward"}) {
      result[name] = [](const Arguments& a) { return attention(a.tensor(1), a.tensor(2), 5); };
    }
    return result;
  }();
  return all;
}

// Of convolution(input, weight, bias, stride, padding, dilation, ...): the output's elements.
double convolution_outputs(const Arguments& a) {
  const at::Tensor& input = a.tensor(0);
  const at::Tensor& weight = a.tensor(1);
  const std::vector<int64_t> stride = a.value(3).toIntVector(), padding = a.value(4).toIntVector(),
                             dilation = a.value(5).toIntVector();
  double outputs = static_cast<double>(input.size(0) * weight.size(0));
  for (int64_t i = 2; i < input.dim(); ++i) {
    const auto at = [i](const std::vector<int64_t>& all) {
      return all[all.size() == 1 ? 0 : static_cast<size_t>(i - 2)];
    };
    const int64_t covered = at(dilation) * (weight.size(i) - 1) + 1;
    outputs *= static_cast<double>((input.size(i) + 2 * at(padding) - covered) / at(stride) + 1);
  }
  return outputs;
}

}  // namespace

double operator_flops(const c10::OperatorHandle& op, const std::vector<c10::IValue>& stack) {
  const std::string& name = op.schema().name();
  const Arguments arguments(stack, op.schema().arguments().size());
  if (const auto found = counts().find(name); found != counts().end()) {
    return found->second(arguments);
  }
  if (name == "aten::convolution" && !arguments.value(6).toBool()) {  // not the transposed one
    return convolution(convolution_outputs(arguments), arguments.tensor(1));
  }
  if (name == "aten::convolution_backward") {  // of the input and of the weight
    return 2 * convolution(static_cast<double>(arguments.tensor(0).numel()), arguments.tensor(2));
  }
  return 0;
}

}  // namespace elixir
