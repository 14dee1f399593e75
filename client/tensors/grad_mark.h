#pragma once

// What a parameter's .grad is once its gradient has gone to elixird: a tensor of the parameter's
// shape without memory. It says that a gradient has come, it disappears with zero_grad(), and
// whatever reads it throws with the remedy, where an undefined gradient would be skipped in silence
// (torch::nn::utils::clip_grad_norm_, a norm by hand). What is added to it (autograd does so with
// the next gradient) waits in it until it is taken.
//
// All of it happens in the operators that reach the mark, not in hooks: LibTorch drops a tensor's
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

  // zero_() was called on it, as zero_grad(set_to_none = false) does: the gradient is dropped.
  bool zeroed() const { return zeroed_; }
  void zero() {
    zeroed_ = true;
    added_.reset();
  }

  // add_() was called on it.
  void add(const at::Tensor& values);
  // The sum of what was added, which is taken from it; undefined: nothing.
  at::Tensor take_added() { return std::exchange(added_, at::Tensor()); }

  // Autograd has put the sum of it and another gradient into its place (with create_graph).
  bool summed() const { return summed_; }
  void set_summed() { summed_ = true; }

  // As if it was new.
  void reset_mark() {
    zeroed_ = summed_ = false;
    added_.reset();
  }

  // All of it, and not a part of it or its transpose, which share its memory.
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

// For the parameter of that name.
at::Tensor make_grad_mark(const at::Tensor& parameter, const std::string& name);

// The mark that a tensor is (or is a view of), or null.
GradMark* grad_mark_of(const at::Tensor& tensor);

}  // namespace elixir
