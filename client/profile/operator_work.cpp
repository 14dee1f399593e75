#include "client/profile/operator_work.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/core/TensorBody.h>

#include <algorithm>
#include <functional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "base/check.h"

namespace elixir {
namespace {

using planner::MatrixProduct;
using planner::OperatorWork;

// The arguments of one call.
class Arguments {
 public:
  Arguments(const std::vector<c10::IValue>& stack, size_t count)
      : first_(stack.data() + (stack.size() - count)) {
    ELIXIR_CHECK(stack.size() >= count, "{} arguments on a stack of {}", count, stack.size());
  }
  const at::Tensor& tensor(size_t i) const { return first_[i].toTensor(); }
  const c10::IValue& value(size_t i) const { return first_[i]; }

 private:
  const c10::IValue* first_;
};

uint64_t size_of(int64_t size) { return static_cast<uint64_t>(size); }

// a [..., m, k] by b [..., k, n].
MatrixProduct pairs(const at::Tensor& a, const at::Tensor& b) {
  const int64_t rows = a.size(-2), inner = a.size(-1);
  const int64_t count = rows * inner == 0 ? 0 : a.numel() / (rows * inner);
  return {.count = size_of(count),
          .rows = size_of(rows),
          .columns = size_of(b.size(-1)),
          .inner = size_of(inner)};
}

// a [..., k] by the transpose of weight [n, k].
MatrixProduct layer(const at::Tensor& a, const at::Tensor& weight) {
  const int64_t inner = a.size(-1);
  return {.count = 1,
          .rows = size_of(inner == 0 ? 0 : a.numel() / inner),
          .columns = size_of(weight.size(0)),
          .inner = size_of(inner)};
}

// Each element of the output takes one product with a filter of weight [out, in / groups, ...].
MatrixProduct filters(double outputs, const at::Tensor& weight) {
  const double filters = static_cast<double>(weight.size(0));
  return {.count = 1,
          .rows = static_cast<uint64_t>(outputs / filters),
          .columns = size_of(weight.size(0)),
          .inner = size_of(weight.numel() / std::max<int64_t>(weight.size(0), 1))};
}

// `count` products of [queries, head] by [head, keys] for each head of each sequence.
OperatorWork attention(const at::Tensor& query, const at::Tensor& key, double count) {
  return {.attention_flops =
              count * 2.0 * static_cast<double>(query.numel()) * static_cast<double>(key.size(-2)),
          .attention_head = static_cast<uint32_t>(query.size(-1))};
}

using Work = std::function<OperatorWork(const Arguments&)>;

const std::unordered_map<std::string_view, Work>& products_and_attention() {
  static const std::unordered_map<std::string_view, Work> all = [] {
    std::unordered_map<std::string_view, Work> result;
    for (const char* name : {"aten::mm", "aten::bmm"}) {
      result[name] = [](const Arguments& a) {
        return OperatorWork{.products = {pairs(a.tensor(0), a.tensor(1))}};
      };
    }
    result["aten::linear"] = [](const Arguments& a) {
      return OperatorWork{.products = {layer(a.tensor(0), a.tensor(1))}};
    };
    for (const char* name : {"aten::addmm", "aten::baddbmm"}) {
      result[name] = [](const Arguments& a) {
        return OperatorWork{.products = {pairs(a.tensor(1), a.tensor(2))}};
      };
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

// The output's elements of convolution(input, weight, bias, stride, padding, dilation, ...).
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

// An expanded tensor is read once: only elements that lie apart count.
double bytes_of(const at::Tensor& tensor) {
  double elements = 1;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.stride(i) != 0) elements *= static_cast<double>(tensor.size(i));
  }
  return tensor.numel() == 0 ? 0 : elements * static_cast<double>(tensor.element_size());
}

// (into, dimension, index, source): chosen elements are written, and read where the source is
// added. A number in the source's place stands for as many elements as the index has.
double scattered_bytes(const Arguments& a, bool adds) {
  const at::Tensor& index = a.tensor(2);
  const bool numbers = !a.value(3).isTensor();
  const auto touched = static_cast<double>((numbers ? index : a.tensor(3)).numel()) *
                       static_cast<double>(a.tensor(0).element_size());
  return bytes_of(index) + (numbers ? 0 : bytes_of(a.tensor(3))) + (adds ? 2 : 1) * touched;
}

// Operators that read and write chosen rows of a table: its other rows cost nothing, or one write.
const std::unordered_map<std::string_view, std::function<double(const Arguments&)>>& of_rows() {
  static const std::unordered_map<std::string_view, std::function<double(const Arguments&)>> all = {
      // (weight, indices): a row read and written for each index
      {"aten::embedding",
       [](const Arguments& a) {
         const at::Tensor& weight = a.tensor(0);
         const double row =
             bytes_of(weight) / static_cast<double>(std::max<int64_t>(weight.size(0), 1));
         return bytes_of(a.tensor(1)) + 2 * row * static_cast<double>(a.tensor(1).numel());
       }},
      // (gradient, indices, rows of the table): the table is written, and its rows are added to
      {"aten::embedding_dense_backward",
       [](const Arguments& a) {
         const at::Tensor& gradient = a.tensor(0);
         const double row = static_cast<double>(gradient.size(-1) * gradient.element_size());
         return bytes_of(a.tensor(1)) + row * static_cast<double>(a.value(2).toInt()) +
                3 * bytes_of(gradient);
       }},
      // (table, dimension, index)
      {"aten::gather",
       [](const Arguments& a) {
         return bytes_of(a.tensor(2)) + 2 * static_cast<double>(a.tensor(2).numel()) *
                                            static_cast<double>(a.tensor(0).element_size());
       }},
      {"aten::index_select",
       [](const Arguments& a) {
         const at::Tensor& table = a.tensor(0);
         const int64_t dimension = at::maybe_wrap_dim(a.value(1).toInt(), table.dim());
         const double rows = static_cast<double>(std::max<int64_t>(table.size(dimension), 1));
         return bytes_of(a.tensor(2)) +
                2 * bytes_of(table) / rows * static_cast<double>(a.tensor(2).numel());
       }},
      {"aten::scatter_", [](const Arguments& a) { return scattered_bytes(a, false); }},
      {"aten::index_copy_", [](const Arguments& a) { return scattered_bytes(a, false); }},
      {"aten::scatter_add_", [](const Arguments& a) { return scattered_bytes(a, true); }},
      {"aten::index_add_", [](const Arguments& a) { return scattered_bytes(a, true); }},
  };
  return all;
}

// In place, but what was there before is not read.
bool overwrites(const std::string& name) {
  static const std::unordered_set<std::string_view> all = {
      "aten::copy_",   "aten::fill_",   "aten::zero_",      "aten::uniform_",
      "aten::normal_", "aten::random_", "aten::bernoulli_", "aten::exponential_"};
  return all.count(name) != 0;
}

// They choose memory and touch none of it.
bool only_allocates(const std::string& name) {
  return name.starts_with("aten::empty") || name.starts_with("aten::new_empty") ||
         name == "aten::resize_" || name == "aten::set_";
}

OperatorWork product_or_attention(const std::string& name, const Arguments& arguments) {
  const auto found = products_and_attention().find(name);
  if (found != products_and_attention().end()) return found->second(arguments);
  if (name == "aten::convolution" && !arguments.value(6).toBool()) {  // not the transposed one
    return {.products = {filters(convolution_outputs(arguments), arguments.tensor(1))}};
  }
  if (name == "aten::convolution_backward") {  // of the input and of the weight
    const MatrixProduct one =
        filters(static_cast<double>(arguments.tensor(0).numel()), arguments.tensor(2));
    return {.products = {one, one}};
  }
  return {};
}

template <typename Function>
void for_each_tensor(const c10::IValue& value, at::Device device, const Function& function) {
  const auto one = [&](const at::Tensor& tensor) {
    if (tensor.defined() && tensor.device() == device && tensor.has_storage()) function(tensor);
  };
  if (value.isTensor()) {
    one(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) one(tensor);
  } else if (value.isList()) {  // of tensors that may be missing
    for (const c10::IValue& item : value.toListRef()) {
      if (item.isTensor()) one(item.toTensor());
    }
  }
}

}  // namespace

OperatorDescription::OperatorDescription(const c10::OperatorHandle& op,
                                         const std::vector<c10::IValue>& stack, at::Device device)
    : device_(device) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string& name = schema.name();
  const Arguments arguments(stack, schema.arguments().size());
  if (only_allocates(name)) {
    complete_ = true;
    return;
  }
  work_ = product_or_attention(name, arguments);
  work_.kernels = 1;
  if (work_.flops() > 0) {
    complete_ = true;
    return;
  }
  if (const auto rows = of_rows().find(name); rows != of_rows().end()) {
    work_.bytes = rows->second(arguments);
    complete_ = true;
    return;
  }
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    const bool read = !written || !(argument.is_out() || overwrites(name));
    writes_ = writes_ || written;
    for_each_tensor(arguments.value(i), device_, [&](const at::Tensor& tensor) {
      storages_.push_back(tensor.storage().unsafeGetStorageImpl());
      if (read) work_.bytes += bytes_of(tensor);
      if (written) written_arguments_ += bytes_of(tensor);
    });
  }
}

OperatorWork OperatorDescription::with_results(const c10::OperatorHandle& op,
                                               const std::vector<c10::IValue>& stack,
                                               bool in_place) const {
  if (complete_) return work_;
  OperatorWork work = work_;
  if (writes_) {
    work.bytes += written_arguments_;
    return work;
  }
  const size_t count = op.schema().returns().size();
  ELIXIR_CHECK(stack.size() >= count, "{} results on a stack of {}", count, stack.size());
  bool makes_view = false;
  for (size_t i = 0; i < count; ++i) {
    for_each_tensor(
        *(stack.end() - static_cast<ptrdiff_t>(count - i)), device_, [&](const at::Tensor& tensor) {
          const auto* storage = tensor.storage().unsafeGetStorageImpl();
          makes_view = makes_view ||
                       std::find(storages_.begin(), storages_.end(), storage) != storages_.end();
          work.bytes += bytes_of(tensor);
        });
  }
  return makes_view && !in_place ? OperatorWork{} : work;
}

}  // namespace elixir
