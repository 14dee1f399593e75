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
// come in rounds: one of each parameter, then the exchange has the chunk. Owned by the thread that
// runs backward. Throws elixir::Error.
class GradOffload {
 public:
  // `most_rounds`: after so many of a step a chunk is updated at once, and no gradient may come or
  // be dropped any more (immediate updates); 0: any number.
  GradOffload(Device& device, Exchange& exchange, const shm::Shape& shape,
              std::vector<shm::ParameterPlace> places, uint32_t most_rounds);

  // The gradient of parameter `index` for `step`; a second one before the step adds to the first,
  // as in torch; with Shape::accumulates in FP32. Of the parameter's type, on its device.
  void take(uint32_t index, const at::Tensor& grad, uint32_t step);

  // Drops what has arrived since the last step (zero_grad).
  void discard();

  // Before the post of `step`: parameters without a gradient count as zero.
  void complete(uint32_t step);

  // Gradients have come since the last step.
  bool pending() const;

  // Whether the next gradient of parameter `index` is the first of a round, which may have to wait:
  // for elixird to be done with the slot, for the device memory of an earlier one.
  bool begins_round(uint32_t index) const { return !chunks_[places_[index].chunk].open; }

  // With immediate updates: all of the chunk's gradients of this step have come.
  bool settled(uint32_t chunk) const {
    return most_rounds_ != 0 && chunk < chunks_.size() && chunks_[chunk].rounds == most_rounds_;
  }

  // After the post: the next gradients are those of the next step.
  void forget();

 private:
  struct Chunk {
    std::vector<uint32_t> parameters;
    uint32_t arrived = 0;  // of them, in this round
    uint32_t rounds = 0;   // ended since the last step
    bool open = false;     // a round has begun
    GradStart start;

    // What is there counts: gradients are added to it.
    bool holds_sum() const { return start.keeps_rounds && rounds > 0; }
  };

  void begin_round(uint32_t chunk, uint32_t step);
  void end_round(uint32_t chunk, uint32_t step);
  void fill_up(uint32_t chunk, uint32_t step);
  void store(const shm::ParameterPlace& place, const at::Tensor& grad);
  void add(const shm::ParameterPlace& place, const at::Tensor& grad);
  void store_zero(const shm::ParameterPlace& place);
  GradTarget target_of(const shm::ParameterPlace& place);

  Device& device_;
  Exchange& exchange_;
  const uint64_t element_bytes_;
  const bool sums_rounds_;  // the exchange takes each round by itself
  const std::vector<shm::ParameterPlace> places_;
  const uint32_t most_rounds_;
  std::vector<Chunk> chunks_;
  std::vector<uint8_t> present_;  // by parameter: its gradient of this round is there
};

}  // namespace elixir
