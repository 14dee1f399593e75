#pragma once

// The results of Optimizer::save() and Optimizer::state_dict().

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "base/export.h"
#include "client/plan/save_options.h"

namespace elixir {

class SaveRequest;

// A save in progress: elixird writes while training continues. Any thread; copies are of the same
// save. Destroying it does not wait, and the save continues. It may outlive its optimizer: then it
// keeps what it knew by that time, and wait() throws kUnavailable for a save that was not over.
class ELIXIR_PUBLIC Saving {
 public:
  explicit Saving(std::shared_ptr<SaveRequest> request);

  bool done() const;        // wait() would return or throw at once
  double progress() const;  // of its bytes, 0 to 1
  // Throws elixir::Error if it failed: then there is no folder of that name, and training
  // continues. kResourceExhausted: the disk is full.
  SaveReport wait();

 private:
  std::shared_ptr<SaveRequest> request_;
};

// torch::optim's state of a parameter, and its FP32 values: FP32 on the CPU, in its shape.
struct ParameterState {
  uint64_t step = 0;  // its own count of updates
  at::Tensor exp_avg, exp_avg_sq, master;
};

}  // namespace elixir
