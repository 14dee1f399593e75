// Data path, hop 1 of 6: gradients go from where autograd has them to where their chunk's come
// together.

#include "client/train/grad_offload.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/throw_error.h"

namespace elixir {

GradOffload::GradOffload(Device& device, Exchange& exchange, const shm::Shape& shape,
                         std::vector<shm::ParameterPlace> places, uint32_t most_micro_steps)
    : device_(device),
      exchange_(exchange),
      element_bytes_(element_bytes(shape.type)),
      places_(std::move(places)),
      most_micro_steps_(most_micro_steps),
      chunks_(shape.all_chunks()),
      present_(places_.size(), 0) {
  for (uint32_t i = 0; i < places_.size(); ++i) {
    ELIXIR_CHECK(places_[i].chunk < chunks_.size(), "parameter '{}' in chunk {} of {}",
                 places_[i].name, places_[i].chunk, chunks_.size());
    chunks_[places_[i].chunk].parameters.push_back(i);
  }
}

GradTarget GradOffload::target_of(const shm::ParameterPlace& place) {
  GradTarget target = exchange_.grad_target(place.chunk);
  target.memory += place.offset * element_bytes_;
  return target;
}

void GradOffload::begin(uint32_t chunk, uint32_t step) {
  Chunk& state = chunks_[chunk];
  if (state.open) return;
  if (has_all_gradients(chunk)) {
    throw Error(error(Code::kInvalidArgument,
                      "a gradient arrived after the {} backward passes of step {} that were "
                      "announced, and immediate updates have been made: set accumulate to the "
                      "number of backward passes a step, or use early or deferred updates",
                      most_micro_steps_, step));
  }
  state.zeroed = exchange_.begin_grads(chunk, step, state.micro_steps + 1);
  state.open = true;
}

void GradOffload::end(uint32_t chunk, uint32_t step) {
  Chunk& state = chunks_[chunk];
  ELIXIR_CHECK(state.open && state.arrived <= state.parameters.size(),
               "a micro-step of chunk {} ends with {} gradients of {}", chunk, state.arrived,
               state.parameters.size());
  exchange_.end_grads(chunk, step, ++state.micro_steps);
  for (uint32_t index : state.parameters) present_[index] = 0;
  state.arrived = 0;
  state.open = false;
}

void GradOffload::take(uint32_t index, const at::Tensor& grad, uint32_t step) {
  ELIXIR_CHECK(index < places_.size(), "parameter {} of {}", index, places_.size());
  const shm::ParameterPlace& place = places_[index];
  Chunk& state = chunks_[place.chunk];
  // The second gradient of a micro-step begins the next one.
  if (present_[index] != 0) fill_up(place.chunk, step);
  begin(place.chunk, step);
  const at::Tensor dense = (grad.is_sparse() ? grad.to_dense() : grad).contiguous();
  ELIXIR_CHECK(static_cast<uint64_t>(dense.numel()) == place.numel,
               "a gradient of {} elements for '{}' of {}", dense.numel(), place.name, place.numel);
  store(place, dense);
  present_[index] = 1;
  if (++state.arrived == state.parameters.size()) end(place.chunk, step);
}

// Ends the micro-step with zeros where parameters had no gradient in it. (One that has none in the
// whole step is not updated: Session::say_gradient tells elixird.)
void GradOffload::fill_up(uint32_t chunk, uint32_t step) {
  Chunk& state = chunks_[chunk];
  begin(chunk, step);
  for (uint32_t index : state.parameters) {
    if (present_[index] == 0 && !state.zeroed) store_zero(places_[index]);
  }
  end(chunk, step);
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
  for (uint32_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    if (!has_all_gradients(chunk)) continue;
    throw Error(error(Code::kInvalidArgument,
                      "zero_grad() between backward() and step(): immediate updates have been made "
                      "with these gradients: use early or deferred updates (--update early)"));
  }
  if (!pending()) return;
  exchange_.discard_grads();
  forget();
}

bool GradOffload::pending() const {
  return std::any_of(chunks_.begin(), chunks_.end(),
                     [](const Chunk& chunk) { return chunk.open || chunk.micro_steps > 0; });
}

void GradOffload::forget() {
  for (Chunk& chunk : chunks_) {
    chunk.arrived = 0;
    chunk.micro_steps = 0;
    chunk.open = false;
  }
  std::fill(present_.begin(), present_.end(), 0);
}

void GradOffload::complete(uint32_t step) {
  for (uint32_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    const Chunk& state = chunks_[chunk];
    if (state.micro_steps == 0 || state.open) fill_up(chunk, step);
  }
}

}  // namespace elixir
