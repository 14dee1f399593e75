#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <optional>
#include <utility>
#include <vector>

namespace elixir {

// The parameters that operators have read, with their version counters at that time. step() and
// set_parameter() raise these counters. Writes to other tensors raise theirs, so it also serves for
// what a region has stored. It keeps no tensor alive.
class ParameterReads {
 public:
  struct Change {
    uint32_t was, is;
  };

  void note(const at::Tensor& parameter);

  // The first parameter whose values have changed since it was read. Empty: there is none.
  std::optional<Change> first_change() const;

 private:
  std::vector<std::pair<c10::VariableVersion, uint32_t>> versions_;
};

// While it lives, the parameters that this thread's operators read are noted in `reads`, and in the
// `reads` of the scopes around this one.
class NotedReads {
 public:
  explicit NotedReads(ParameterReads* reads);
  ~NotedReads();
  NotedReads(const NotedReads&) = delete;
  NotedReads& operator=(const NotedReads&) = delete;

  // The interception calls it with each parameter, or view of one, that an operator reads.
  static void note(const at::Tensor& parameter);

 private:
  ParameterReads* const reads_;
  NotedReads* const around_;
};

}  // namespace elixir
