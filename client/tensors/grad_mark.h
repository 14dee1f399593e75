#pragma once

// A grad mark is a parameter's .grad once its gradient has gone to elixird: a tensor of the
// parameter's shape without memory. It shows that a gradient has come, and zero_grad() removes it.
// An operator that reads it throws, with the remedy. An undefined gradient would be skipped in
// silence (torch::nn::utils::clip_grad_norm_, a norm by hand). Autograd adds the next gradient to
// the mark. Added values wait in the mark until they are taken.
//
// The operators that reach the mark do all of this, not hooks, because LibTorch drops a tensor's
// hooks when others are set.

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <string>
#include <utility>
#include <vector>

namespace elixir {

class GradMark final : public c10::StorageImpl {
 public:
  GradMark(std::string parameter, at::IntArrayRef sizes, size_t bytes, c10::Device device);

  // Whether zero_() was called on it, as zero_grad(set_to_none = false) does: the gradient is
  // dropped.
  bool zeroed() const { return zeroed_; }
  void zero() {
    zeroed_ = true;
    added_.reset();
  }

  // Call it when add_() was called on the mark.
  void add(const at::Tensor& values);
  // Takes the sum of the added values out of the mark; undefined: nothing was added.
  at::Tensor take_added() { return std::exchange(added_, at::Tensor()); }

  // Whether autograd has replaced it by the sum of it and another gradient (with create_graph).
  bool summed() const { return summed_; }
  void set_summed() { summed_ = true; }

  // Makes the mark as if it was new.
  void reset_mark() {
    zeroed_ = summed_ = false;
    added_.reset();
  }

  // Whether the tensor is the whole mark, and not a part of it or its transpose, which share its
  // memory.
  bool is_whole(const at::Tensor& tensor) const {
    return tensor.sizes() == at::IntArrayRef(sizes_) && tensor.is_contiguous();
  }

  // Throws elixir::Error (kInvalidArgument).
  [[noreturn]] void refuse(const char* operator_name) const;

 private:
  const std::string parameter_;
  const std::vector<int64_t> sizes_;
  at::Tensor added_;
  bool zeroed_ = false;
  bool summed_ = false;
};

// Makes the mark of the parameter with this name.
at::Tensor make_grad_mark(const at::Tensor& parameter, const std::string& name);

// The mark that a tensor is (or is a view of), or null.
GradMark* grad_mark_of(const at::Tensor& tensor);

}  // namespace elixir
