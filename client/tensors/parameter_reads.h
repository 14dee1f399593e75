#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <optional>
#include <utility>
#include <vector>

namespace elixir {

// Parameters as operators read them, by their version counters, which step() and set_parameter()
// raise. Keeps no tensor alive.
class ParameterReads {
 public:
  struct Change {
    uint32_t was, is;
  };

  void note(const at::Tensor& parameter);

  // Of a parameter that was given other values since it was read, if there is one.
  std::optional<Change> first_change() const;

 private:
  std::vector<std::pair<c10::VariableVersion, uint32_t>> versions_;
};

// While it lives, what this thread's operators read is noted in `reads`, and in those of the scopes
// around this one.
class NotedReads {
 public:
  explicit NotedReads(ParameterReads* reads);
  ~NotedReads();
  NotedReads(const NotedReads&) = delete;
  NotedReads& operator=(const NotedReads&) = delete;

  // The interception says what an operator reads: a parameter or a view of one.
  static void note(const at::Tensor& parameter);

 private:
  ParameterReads* const reads_;
  NotedReads* const around_;
};

}  // namespace elixir
