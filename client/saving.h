#pragma once

// What Optimizer::save() returns, and what Optimizer::state_dict() does.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "base/export.h"
#include "client/plan/save_options.h"

namespace elixir {

class SaveRequest;

// A save under way: elixird writes while training goes on. Any thread; copies are of the same save.
// Destroying it does not wait, and the save goes on. It may outlive its optimizer: what it knew by
// then stays, and of a save that was not over wait() throws kUnavailable.
class ELIXIR_PUBLIC Saving {
 public:
  explicit Saving(std::shared_ptr<SaveRequest> request);

  bool done() const;        // wait() would return or throw at once
  double progress() const;  // of its bytes, 0 to 1
  // Throws elixir::Error where it failed: nothing is there under its name then, and training goes
  // on. kResourceExhausted: the disk is full.
  SaveReport wait();

 private:
  std::shared_ptr<SaveRequest> request_;
};

// What torch::optim keeps of a parameter, FP32 on the CPU, of its shape; and its FP32 values.
struct ParameterState {
  uint64_t step = 0;  // its own count of updates
  at::Tensor exp_avg, exp_avg_sq, master;
};

}  // namespace elixir
