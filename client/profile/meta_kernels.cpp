// Kernels for meta tensors: they compute nothing and allocate what the target's kernels allocate,
// their scratch memory included, so that a count of allocations is a count of memory.

#include "client/profile/meta_kernels.h"

#include <ATen/ExpandUtils.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/TensorBody.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/native_dropout.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/result_type.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <numeric>
#include <optional>
#include <tuple>
#include <vector>

namespace elixir {
namespace {

using at::IntArrayRef;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

bool on_cpu() { return profile_target() == ProfileTarget::kCpu; }

Tensor empty_of(IntArrayRef sizes, const Tensor& like, at::ScalarType dtype) {
  return at::empty(sizes, like.options().dtype(dtype));
}
Tensor empty_of(IntArrayRef sizes, const Tensor& like) { return at::empty(sizes, like.options()); }

// ---- products ----

// Into a wider type than the factors', which CUDA alone can.
Tensor mm_into(const Tensor& self, const Tensor& other, at::ScalarType dtype) {
  return empty_of({self.size(0), other.size(1)}, self, dtype);
}

// ---- embeddings, choice ----

Tensor index_select(const Tensor& self, int64_t dim, const Tensor& index) {
  std::vector<int64_t> sizes = self.sizes().vec();
  if (!sizes.empty())
    sizes[static_cast<size_t>(at::maybe_wrap_dim(dim, self.dim()))] = index.numel();
  return empty_of(sizes, self);
}

Tensor embedding_dense_backward(const Tensor& grad, const Tensor& /*indices*/, int64_t count,
                                int64_t /*padding*/, bool /*scale_by_frequency*/) {
  return empty_of({count, grad.size(-1)}, grad);
}

Tensor where(const Tensor& condition, const Tensor& self, const Tensor& other) {
  const Tensor& like = self.is_meta() ? self : other.is_meta() ? other : condition;
  const auto sizes = at::infer_size(at::infer_size(condition.sizes(), self.sizes()), other.sizes());
  return empty_of(sizes, like, at::result_type(self, other));
}

// Into memory that is there.
Tensor& where_out(const Tensor& /*condition*/, const Tensor& /*self*/, const Tensor& /*other*/,
                  Tensor& out) {
  return out;
}

Tensor relu(const Tensor& self) { return at::empty_like(self); }

// ---- norms ----

// Rows and columns of what is normalised.
std::pair<int64_t, int64_t> rows_and_columns(const Tensor& input, IntArrayRef shape) {
  const int64_t columns =
      std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  return {columns == 0 ? 0 : input.numel() / columns, columns};
}

std::vector<int64_t> statistics_shape(const Tensor& input, IntArrayRef shape) {
  std::vector<int64_t> sizes = input.sizes().vec();
  for (size_t i = 0; i < shape.size(); ++i) sizes[sizes.size() - 1 - i] = 1;
  return sizes;
}

std::tuple<Tensor, Tensor, Tensor> layer_norm(const Tensor& input, IntArrayRef shape,
                                              const OptionalTensor& weight,
                                              const OptionalTensor& /*bias*/, double /*eps*/) {
  const Tensor contiguous = input.contiguous();
  // CUDA keeps the statistics in FP32; the CPU in the type of the weights.
  const at::ScalarType statistics = !on_cpu() ? at::toOpMathType(input.scalar_type())
                                    : weight.has_value() && weight->defined()
                                        ? weight->scalar_type()
                                        : input.scalar_type();
  const std::vector<int64_t> rows = statistics_shape(input, shape);
  return {at::empty_like(contiguous, at::MemoryFormat::Contiguous),
          empty_of(rows, input, statistics), empty_of(rows, input, statistics)};
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_backward(const Tensor& grad, const Tensor& input,
                                                       IntArrayRef shape, const Tensor& /*mean*/,
                                                       const Tensor& /*rstd*/,
                                                       const OptionalTensor& weight,
                                                       const OptionalTensor& bias,
                                                       std::array<bool, 3> wanted) {
  const Tensor rows = grad.contiguous(), contiguous = input.contiguous();
  Tensor grad_input, grad_weight, grad_bias, partial;
  if (wanted[0]) grad_input = at::empty_like(contiguous, at::MemoryFormat::Contiguous);
  if (wanted[1]) grad_weight = at::empty_like(*weight, at::MemoryFormat::Contiguous);
  if (wanted[2]) grad_bias = at::empty_like(*bias, at::MemoryFormat::Contiguous);
  if (on_cpu() && (wanted[1] || wanted[2])) {  // sums of each thread
    partial = empty_of({2, at::get_num_threads(), rows_and_columns(input, shape).second}, input,
                       at::toOpMathType(input.scalar_type()));
  }
  return {grad_input, grad_weight, grad_bias};
}

// torch multiplies in FP32, on a GPU in one kernel (_fused_rms_norm) that keeps the input and one
// number a row; elsewhere by operators that keep the input and its normalised form in FP32. The
// fused operator has no autograd formula for meta tensors.
class FusedRmsNorm : public torch::autograd::Function<FusedRmsNorm> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& input,
                        const Tensor& weight) {
    const at::AutoDispatchBelowADInplaceOrView below;
    std::vector<int64_t> rows = input.sizes().vec();
    for (int64_t i = 0; i < std::max<int64_t>(weight.dim(), 1); ++i) {
      rows[rows.size() - 1 - static_cast<size_t>(i)] = 1;
    }
    const Tensor contiguous = input.contiguous();
    Tensor output = at::empty_like(contiguous);
    const Tensor rstd = empty_of(rows, input, at::toOpMathType(input.scalar_type()));
    context->save_for_backward({input, weight, rstd});
    return output;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const Tensor rows = grads[0].contiguous(), contiguous = saved[0].contiguous();
    Tensor grad_input, grad_weight;
    if (context->needs_input_grad(0)) grad_input = at::empty_like(contiguous);
    if (context->needs_input_grad(1)) grad_weight = at::empty_like(saved[1]);
    return {grad_input, grad_weight};
  }
};

// Above autograd: (output, rstd).
std::tuple<Tensor, Tensor> fused_rms_norm(const Tensor& input, IntArrayRef shape,
                                          const OptionalTensor& weight, std::optional<double> eps) {
  if (!on_cpu() && weight.has_value() && weight->defined()) {
    Tensor output = FusedRmsNorm::apply(input, *weight);
    return {std::move(output), Tensor()};
  }
  std::vector<int64_t> dims;
  for (int64_t i = -static_cast<int64_t>(shape.size()); i < 0; ++i) dims.push_back(i);
  const Tensor upcast = input.to(at::toOpMathType(input.scalar_type()));
  Tensor rstd = upcast.pow(2).mean(dims, /*keepdim=*/true).add_(eps.value_or(0)).rsqrt();
  Tensor output = upcast.mul(rstd);
  if (weight.has_value() && weight->defined()) output = output.mul(*weight);
  return {output.to(input.scalar_type()), rstd};
}

// ---- losses ----

Tensor mse_loss_backward(const Tensor& /*grad*/, const Tensor& input, const Tensor& /*target*/,
                         int64_t /*reduction*/) {
  return at::empty_like(input);
}

// ---- dropout ----

std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double /*p*/,
                                          std::optional<bool> /*train*/) {
  return {at::empty_like(input), at::empty_like(input, input.options().dtype(at::kBool))};
}

Tensor native_dropout_backward(const Tensor& grad, const Tensor& /*mask*/, double /*scale*/) {
  return at::empty_like(grad);
}

// Above autograd: on a GPU torch takes the fused operator, whose mask has one byte an element.
Tensor dropout(const Tensor& input, double p, bool train) {
  if (p == 0 || !train || input.numel() == 0) return input;
  if (profile_target() == ProfileTarget::kCuda && p < 1) {
    return std::get<0>(at::native_dropout(input, p, train));
  }
  Tensor noise = at::empty_like(input).bernoulli_(1 - p);
  noise.div_(1 - p);
  return at::mul(input, noise);
}

// ---- fused attention (Dao, arXiv 2307.08691): no scores in memory ----

// The blocks of queries and keys that LibTorch's CPU kernel works on.
int64_t query_block(int64_t queries) {
  return std::min<int64_t>(queries, queries >= 768 ? 256 : queries >= 192 ? 64 : 32);
}
int64_t key_block(int64_t keys) { return std::min<int64_t>(keys, 512); }

std::tuple<Tensor, Tensor> attention(const Tensor& query, const Tensor& key,
                                     const Tensor& /*value*/, double /*dropout*/, bool /*causal*/,
                                     const OptionalTensor& /*mask*/,
                                     std::optional<double> /*scale*/) {
  const int64_t batch = query.size(0), heads = query.size(1), queries = query.size(2),
                head_width = query.size(3);
  const at::ScalarType accumulated = at::toOpMathType(query.scalar_type());
  Tensor output = at::empty_like(query);
  Tensor log_sum_exp = empty_of({batch, queries, heads}, query, accumulated).transpose(1, 2);
  if (on_cpu()) {  // each thread's scores and output
    const int64_t rows = query_block(queries), columns = key_block(key.size(2));
    const int64_t threads = at::get_num_threads();
    const Tensor scratch =
        empty_of({threads, rows * (columns + 2 + head_width)}, query, accumulated);
    const bool reduced = accumulated != query.scalar_type();
    const Tensor rounded = empty_of({threads, rows, reduced ? columns : 0}, query);
  }
  return {std::move(output), std::move(log_sum_exp)};
}

// A gradient in the layout of LibTorch's kernels, [batch, length, heads, width] in memory.
Tensor attention_gradient(const Tensor& of) {
  return empty_of({of.size(0), of.size(2), of.size(1), of.size(3)}, of).transpose(1, 2);
}

constexpr int64_t kFlashRows = 128;    // to which CUDA's kernel pads lengths
constexpr int64_t kFlashColumns = 32;  // and the width of a head

int64_t padded(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

std::tuple<Tensor, Tensor, Tensor> attention_backward(
    const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& /*out*/, const Tensor& /*log_sum_exp*/, double /*dropout*/, bool /*causal*/,
    const OptionalTensor& /*mask*/, std::optional<double> /*scale*/) {
  const at::ScalarType accumulated = at::toOpMathType(query.scalar_type());
  const int64_t batch = query.size(0), heads = query.size(1), queries = query.size(2);
  std::tuple<Tensor, Tensor, Tensor> result = {attention_gradient(query), attention_gradient(key),
                                               attention_gradient(value)};
  const Tensor rows_first = grad.transpose(1, 2).contiguous();
  if (on_cpu()) {
    const int64_t threads = at::get_num_threads();
    const int64_t scores = 2 * query_block(queries) * key_block(key.size(2));
    const Tensor scratch = empty_of({threads, scores}, query, accumulated);
    const bool reduced = accumulated != query.scalar_type();
    const Tensor rounded = empty_of({threads, reduced ? scores : 0}, query);
    return result;
  }
  const int64_t rows = padded(queries, kFlashRows);
  const Tensor row_sums = empty_of({batch, heads, rows}, query, accumulated);
  const Tensor grad_query =
      empty_of({batch, rows, heads, padded(query.size(3), kFlashColumns)}, query, accumulated);
  if (key.size(1) != heads) {  // the gradients of each query's head, summed afterwards
    const Tensor of_keys = empty_of({2, batch, key.size(2), heads, key.size(3)}, key);
  }
  return result;
}

bool fuses_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                     const OptionalTensor& mask, double dropout) {
  if (!profile_target().has_value()) return false;
  if (query.dim() != 4 || key.dim() != 4 || value.dim() != 4) return false;
  if (query.size(3) != key.size(3) || query.size(3) != value.size(3)) return false;
  if (query.stride(3) != 1 || key.stride(3) != 1 || value.stride(3) != 1) return false;
  if (mask.has_value() && mask->defined() && mask->requires_grad()) return false;
  return dropout == 0 || !on_cpu();
}

// Above autograd: LibTorch itself never fuses attention on meta tensors.
Tensor scaled_dot_product_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                    const OptionalTensor& mask, double dropout, bool causal,
                                    std::optional<double> scale, bool grouped) {
  if (fuses_attention(query, key, value, mask, dropout)) {
    return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout,
                                                                       causal, mask, scale));
  }
  return std::get<0>(at::_scaled_dot_product_attention_math(query, key, value, mask, dropout,
                                                            causal, {}, scale, grouped));
}

// Registers what LibTorch lacks, and keeps the registrations for as long as the process lives.
class Registrations {
 public:
  explicit Registrations(c10::DispatchKey key)
      : key_(key), library_(torch::Library::IMPL, "aten", key, __FILE__, __LINE__) {}

  template <typename Kernel>
  void add(const char* name, const char* overload, Kernel kernel) {
    const std::string full = std::string("aten::") + name;
    const auto op = c10::Dispatcher::singleton().findSchema({full, overload});
    if (!op.has_value() || op->hasKernelForDispatchKey(key_)) return;
    const std::string with_overload = *overload == 0 ? name : std::string(name) + "." + overload;
    library_.impl(with_overload.c_str(), kernel);
  }

 private:
  const c10::DispatchKey key_;
  torch::Library library_;
};

}  // namespace

void register_meta_kernels() {
  static const bool registered = [] {
    auto* const below = new Registrations(c10::DispatchKey::Meta);
    below->add("mm", "dtype", &mm_into);
    below->add("index_select", "", &index_select);
    below->add("embedding_dense_backward", "", &embedding_dense_backward);
    below->add("where", "self", &where);
    below->add("where", "self_out", &where_out);
    below->add("relu", "", &relu);
    below->add("native_layer_norm", "", &layer_norm);
    below->add("native_layer_norm_backward", "", &layer_norm_backward);
    below->add("mse_loss_backward", "", &mse_loss_backward);
    below->add("native_dropout", "", &native_dropout);
    below->add("native_dropout_backward", "", &native_dropout_backward);
    below->add("_scaled_dot_product_flash_attention_for_cpu", "", &attention);
    below->add("_scaled_dot_product_flash_attention_for_cpu_backward", "", &attention_backward);
    auto* const above = new Registrations(c10::DispatchKey::AutogradMeta);
    above->add("scaled_dot_product_attention", "", &scaled_dot_product_attention);
    above->add("dropout", "", &dropout);
    above->add("_fused_rms_norm", "", &fused_rms_norm);
    return true;
  }();
  (void)registered;
}

TargetKernels::TargetKernels(ProfileTarget wanted) {
  register_meta_kernels();
  profile_target() = wanted;
}

TargetKernels::~TargetKernels() { profile_target().reset(); }

}  // namespace elixir
