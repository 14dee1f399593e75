#pragma once

// The results of Optimizer::save() and Optimizer::state_dict().

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "base/export.h"
#include "client/plan/save_options.h"

namespace elixir {

class SaveRequest;

// A save in progress: elixird writes while training continues. Any thread may use it. Copies refer
// to the same save. Destroying it does not wait, and the save continues. It may outlive its
// optimizer. Then it keeps what it knew when the optimizer ended, and wait() throws kUnavailable if
// the save was not over by then.
class ELIXIR_PUBLIC Saving {
 public:
  explicit Saving(std::shared_ptr<SaveRequest> request);

  bool done() const;        // wait() would return or throw at once
  double progress() const;  // share of its bytes that are written, 0 to 1
  // Waits for its end. Throws elixir::Error if it failed: then there is no folder of that name, and
  // training continues. The code is kResourceExhausted if the disk is full.
  SaveReport wait();

 private:
  std::shared_ptr<SaveRequest> request_;
};

// torch::optim's state of a parameter, and its FP32 values. The tensors are FP32, on the CPU, in
// the parameter's shape.
struct ParameterState {
  uint64_t step = 0;  // its own count of updates
  at::Tensor exp_avg, exp_avg_sq, master;
};

}  // namespace elixir
