// Data path, hop 1 of 6: gradients go from where autograd has them to where their chunk's come
// together.

#include "client/exchange/grad_offload.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cstring>

#include "base/throw_error.h"

namespace elixir {

GradOffload::GradOffload(Device& device, Exchange& exchange, const shm::Shape& shape,
                         std::vector<shm::ParameterPlace> places, uint32_t most_rounds)
    : device_(device),
      exchange_(exchange),
      element_bytes_(element_bytes(shape.type)),
      sums_rounds_(shape.accumulates),
      places_(std::move(places)),
      most_rounds_(most_rounds),
      chunks_(shape.all_chunks()),
      present_(places_.size(), 0) {
  for (uint32_t i = 0; i < places_.size(); ++i) chunks_[places_[i].chunk].parameters.push_back(i);
}

GradTarget GradOffload::target_of(const shm::ParameterPlace& place) {
  GradTarget target = exchange_.grad_target(place.chunk);
  target.memory += place.offset * element_bytes_;
  return target;
}

void GradOffload::begin_round(uint32_t chunk, uint32_t step) {
  Chunk& state = chunks_[chunk];
  if (state.open) return;
  if (most_rounds_ != 0 && state.rounds == most_rounds_) {
    throw Error(error(Code::kInvalidArgument,
                      "a gradient arrived after the {} backward passes of step {} that were "
                      "announced, and immediate updates have been made: set accumulate to the "
                      "number of backward passes a step, or use deferred updates",
                      most_rounds_, step));
  }
  state.start = exchange_.begin_grads(chunk, step);
  state.open = true;
}

void GradOffload::end_round(uint32_t chunk, uint32_t step) {
  Chunk& state = chunks_[chunk];
  exchange_.end_grads(chunk, step, state.rounds + 1);
  for (uint32_t index : state.parameters) present_[index] = 0;
  state.arrived = 0;
  state.open = false;
  ++state.rounds;
}

void GradOffload::take(uint32_t index, const at::Tensor& grad, uint32_t step) {
  const shm::ParameterPlace& place = places_[index];
  Chunk& state = chunks_[place.chunk];
  // The second gradient of a round, where rounds are summed elsewhere, begins the next one.
  if (present_[index] != 0 && sums_rounds_) fill_up(place.chunk, step);
  begin_round(place.chunk, step);
  const at::Tensor dense = (grad.is_sparse() ? grad.to_dense() : grad).contiguous();
  if (present_[index] != 0 || state.holds_sum()) {
    add(place, dense);
  } else {
    store(place, dense);
  }
  if (present_[index] != 0) return;
  present_[index] = 1;
  if (++state.arrived == state.parameters.size()) end_round(place.chunk, step);
}

// Ends the round: parameters that had no gradient in it count as zero.
void GradOffload::fill_up(uint32_t chunk, uint32_t step) {
  Chunk& state = chunks_[chunk];
  begin_round(chunk, step);
  const bool needs_zeros = !state.holds_sum() && !state.start.zeroed;
  for (uint32_t index : state.parameters) {
    if (present_[index] == 0 && needs_zeros) store_zero(places_[index]);
  }
  end_round(chunk, step);
}

void GradOffload::store(const shm::ParameterPlace& place, const at::Tensor& grad) {
  const auto* from = static_cast<const std::byte*>(grad.const_data_ptr());
  const uint64_t bytes = place.numel * element_bytes_;
  const GradTarget target = target_of(place);
  if (target.on_device) {
    device_.copy(Stream::kCompute, target.memory, from, bytes);
  } else {
    device_.download(Stream::kDownload, target.memory, from, bytes);  // done when it returns
  }
}

void GradOffload::add(const shm::ParameterPlace& place, const at::Tensor& grad) {
  at::from_blob(target_of(place).memory, grad.sizes(), grad.options()).add_(grad);
}

void GradOffload::store_zero(const shm::ParameterPlace& place) {
  const GradTarget target = target_of(place);
  const uint64_t bytes = place.numel * element_bytes_;
  if (target.on_device) {
    device_.zero(Stream::kCompute, target.memory, bytes);
  } else {
    std::memset(target.memory, 0, bytes);
  }
}

void GradOffload::discard() {
  const auto updated = [&](const Chunk& chunk) { return chunk.rounds == most_rounds_; };
  if (most_rounds_ != 0 && std::any_of(chunks_.begin(), chunks_.end(), updated)) {
    throw Error(error(Code::kInvalidArgument,
                      "zero_grad() between backward() and step(): immediate updates have been made "
                      "with these gradients: use deferred updates (--update deferred)"));
  }
  exchange_.discard_grads();
  forget();
}

bool GradOffload::pending() const {
  return std::any_of(chunks_.begin(), chunks_.end(),
                     [](const Chunk& chunk) { return chunk.open || chunk.rounds > 0; });
}

void GradOffload::forget() {
  for (Chunk& chunk : chunks_) {
    chunk.arrived = 0;
    chunk.rounds = 0;
    chunk.open = false;
  }
  std::fill(present_.begin(), present_.end(), 0);
}

void GradOffload::complete(uint32_t step) {
  for (uint32_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    const Chunk& state = chunks_[chunk];
    if (state.rounds == 0 || state.open) fill_up(chunk, step);
  }
}

}  // namespace elixir
