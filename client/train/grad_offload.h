#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "client/device/device.h"
#include "client/exchange/exchange.h"
#include "shm/parameter_table.h"
#include "shm/shape.h"

namespace elixir {

// Moves gradients to the exchange as backward makes them. Gradients of a chunk come in micro-steps:
// one gradient of each parameter, then the exchange gets the chunk.
//
// With several ranks, all chunks of the model have their micro-steps together. The first parameter
// that comes a second time begins the next micro-step of all chunks. Gradients that are missing in
// the previous one count as zeros. So a parameter's gradients are added up in an order that does
// not depend on its chunk, and no chunk waits for a parameter that a pass does not use. A single
// rank adds up gradients in the order in which they come, so each chunk has its own micro-steps.
//
// Owned by the thread that runs backward. Throws elixir::Error.
class GradOffload {
 public:
  // `most_micro_steps`: with immediate updates, a chunk is updated at once after this many
  // micro-steps of a step. No more gradients may come or be dropped then. 0: any number.
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
  // may have to wait until elixird no longer uses the slot, or for the device memory of an earlier
  // one.
  bool begins_micro_step(uint32_t index) const {
    // the first of several chunks
    return !chunks_[places_[index].chunk].open || came_[index] != 0;
  }

  // With immediate updates: whether all of the chunk's gradients of this step have come.
  bool has_all_gradients(uint32_t chunk) const {
    return most_micro_steps_ != 0 && chunk < chunks_.size() &&
           chunks_[chunk].micro_steps == most_micro_steps_;
  }

  // Call it after the post: the next gradients belong to the next step.
  void forget();

 private:
  struct Chunk {
    std::vector<uint32_t> parameters;
    uint32_t arrived = 0;      // gradients in this micro-step
    uint32_t micro_steps = 0;  // ended since the last step
    bool open = false;         // a further micro-step has begun
    bool zeroed = false;       // Exchange::begin_grads() said that its target holds zeros
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
  const bool together_;  // all chunks have their micro-steps together
  std::vector<Chunk> chunks_;
  uint32_t ended_ = 0;         // micro-steps of the whole model since the last step
  std::vector<uint8_t> came_;  // by parameter: its gradient of this micro-step has come
};

}  // namespace elixir
