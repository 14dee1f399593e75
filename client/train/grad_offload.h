#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "client/device/device.h"
#include "client/exchange/exchange.h"
#include "shm/parameter_table.h"
#include "shm/shape.h"

namespace elixir {

// Takes gradients to where the exchange wants them, as backward makes them. Gradients of a chunk
// come in micro-steps: one of each parameter, then the exchange has the chunk.
//
// With several ranks a step's micro-steps are those of the whole model: the first parameter that
// comes a second time begins the next one, of all chunks, and what has not come in the one before
// counts as zeros there. So a parameter's gradients are added up in an order that has nothing to do
// with the chunk in which it is, and no chunk waits for a parameter that a pass does not use. A
// rank alone adds up in the order in which gradients come, whatever chunks do: there each has its
// own.
//
// Owned by the thread that runs backward. Throws elixir::Error.
class GradOffload {
 public:
  // `most_micro_steps`: after so many of a step a chunk is updated at once, and no gradient may
  // come or be dropped any more (immediate updates); 0: any number.
  GradOffload(Device& device, Exchange& exchange, const shm::Shape& shape,
              std::vector<shm::ParameterPlace> places, uint32_t most_micro_steps);

  // The gradient of parameter `index` for `step`; a second one before the step adds to the first,
  // as in torch, but in FP32. Of the parameter's type, on its device.
  void take(uint32_t index, const at::Tensor& grad, uint32_t step);

  // Drops what has arrived since the last step (zero_grad). Ranks count how often something was
  // dropped, so a zero_grad() more or less on one of them makes no difference.
  void discard();

  // Before the post of `step`: every chunk is published, zeros where parameters have no gradient.
  void complete(uint32_t step);

  // Gradients have come since the last step.
  bool pending() const;

  // Whether the next gradient of parameter `index` is the first of a micro-step, which may have to
  // wait: for elixird to be done with the slot, for the device memory of an earlier one.
  bool begins_micro_step(uint32_t index) const {
    return !chunks_[places_[index].chunk].open || came_[index] != 0;  // of several, the first's
  }

  // With immediate updates: all of the chunk's gradients of this step have come.
  bool has_all_gradients(uint32_t chunk) const {
    return most_micro_steps_ != 0 && chunk < chunks_.size() &&
           chunks_[chunk].micro_steps == most_micro_steps_;
  }

  // After the post: the next gradients are those of the next step.
  void forget();

 private:
  struct Chunk {
    std::vector<uint32_t> parameters;
    uint32_t arrived = 0;      // of them, in this micro-step
    uint32_t micro_steps = 0;  // ended since the last step
    bool open = false;         // another one has begun
    bool zeroed = false;       // with zeros
  };

  void end_micro_step(uint32_t step);
  void begin(uint32_t chunk, uint32_t step);
  void end(uint32_t chunk, uint32_t step);
  void fill_up(uint32_t chunk, uint32_t step);
  void take_part(uint32_t index, uint32_t chunk, const at::Tensor& grad, uint32_t step);
  void store(const shm::ParameterPlace& place, uint32_t chunk, const at::Tensor& grad);
  void store_zero(const shm::ParameterPlace& place, uint32_t chunk);
  GradTarget target_of(uint32_t chunk, const shm::ParameterPart& part);

  Device& device_;
  Exchange& exchange_;
  const shm::Shape shape_;
  const uint64_t element_bytes_;
  const std::vector<shm::ParameterPlace> places_;
  const uint32_t most_micro_steps_;
  const bool together_;  // micro-steps are those of the whole model
  std::vector<Chunk> chunks_;
  uint32_t ended_ = 0;         // micro-steps of the whole model since the last step
  std::vector<uint8_t> came_;  // by parameter: its gradient of this micro-step has come
};

}  // namespace elixir
