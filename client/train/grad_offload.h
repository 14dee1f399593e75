#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "client/device/device.h"
#include "client/exchange/exchange.h"
#include "shm/parameter_table.h"
#include "shm/shape.h"

namespace elixir {

// Moves gradients to where the exchange wants them, as backward makes them. Gradients of a chunk
// come in micro-steps: one of each parameter, then the exchange gets the chunk.
//
// With several ranks a step's micro-steps are those of the whole model. The first parameter that
// comes a second time begins the next micro-step of all chunks, and gradients that are missing in
// the one before count as zeros. So a parameter's gradients are added up in an order that does not
// depend on its chunk, and no chunk waits for a parameter that a pass does not use. A single rank
// adds up in the order in which gradients come: there each chunk has its own micro-steps.
//
// Owned by the thread that runs backward. Throws elixir::Error.
class GradOffload {
 public:
  // `most_micro_steps`: after so many of a step a chunk is updated at once, and no more gradients
  // may come or be dropped (immediate updates); 0: any number.
  GradOffload(Device& device, Exchange& exchange, const shm::Shape& shape,
              std::vector<shm::ParameterPlace> places, uint32_t most_micro_steps);

  // Takes the gradient of parameter `index` for `step`, of the parameter's type, on its device. A
  // second one before the step adds to the first, as in torch, but in FP32.
  void take(uint32_t index, const at::Tensor& grad, uint32_t step);

  // Drops the gradients since the last step (zero_grad). Ranks count how often something was
  // dropped, so another zero_grad() on one of them makes no difference.
  void discard();

  // Call it before the post of `step`: publishes every chunk, with zeros for missing gradients.
  void complete(uint32_t step);

  // Whether gradients have come since the last step.
  bool pending() const;

  // Whether the next gradient of parameter `index` is the first of a micro-step. Such a gradient
  // may have to wait for elixird to be done with the slot, or for the device memory of an earlier
  // one.
  bool begins_micro_step(uint32_t index) const {
    // of several chunks, the first
    return !chunks_[places_[index].chunk].open || came_[index] != 0;
  }

  // With immediate updates: whether all of the chunk's gradients of this step have come.
  bool has_all_gradients(uint32_t chunk) const {
    return most_micro_steps_ != 0 && chunk < chunks_.size() &&
           chunks_[chunk].micro_steps == most_micro_steps_;
  }

  // Call it after the post: the next gradients are those of the next step.
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
