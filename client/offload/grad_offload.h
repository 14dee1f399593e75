#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "client/exchange/exchange.h"
#include "client/session/session.h"
#include "shm/parameter_table.h"

namespace elixir {

// Takes gradients down as backward makes them. A chunk is published when the gradient of its last
// parameter has arrived. Owned by the thread that runs backward. Throws elixir::Error.
class GradOffload {
 public:
  GradOffload(Session& session, Exchange& exchange, std::vector<shm::ParameterPlace> places);

  // The gradient of parameter `index` for `step`; a second one before the step adds to the first,
  // as in torch. Dense, of the parameter's type, on its device.
  void take(uint32_t index, const at::Tensor& grad, uint32_t step);

  // Drops what has arrived since the last step (zero_grad).
  void discard();

  // Before the verdict on `step`: parameters without a gradient count as zero, and every chunk not
  // yet published is.
  void complete(uint32_t step);

 private:
  void await_slot(uint32_t chunk, uint32_t step);

  Session& session_;
  Exchange& exchange_;
  const std::vector<shm::ParameterPlace> places_;
  std::vector<uint32_t> expected_;   // parameters of each chunk
  std::vector<uint32_t> arrived_;    // of them, with a gradient since the last step
  std::vector<uint32_t> slot_step_;  // the step whose gradients the chunk's slot may hold now
  std::vector<uint8_t> present_;     // a parameter's gradient is in its slot
};

}  // namespace elixir
