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
      shape_(shape),
      element_bytes_(element_bytes(shape.type)),
      places_(std::move(places)),
      most_micro_steps_(most_micro_steps),
      together_(shape.ranks > 1),
      chunks_(shape.all_chunks()),
      came_(places_.size(), 0) {
  for (uint32_t i = 0; i < places_.size(); ++i) {
    const shm::ChunkRun run = shm::chunks_of(places_[i], shape_);
    ELIXIR_CHECK(run.end() <= chunks_.size(), "parameter '{}' in chunk {} of {}", places_[i].name,
                 run.end() - 1, chunks_.size());
    for (uint32_t chunk = run.first; chunk < run.end(); ++chunk) {
      chunks_[chunk].parameters.push_back(i);
    }
  }
}

GradTarget GradOffload::target_of(uint32_t chunk, const shm::ParameterPart& part) {
  GradTarget target = exchange_.grad_target(chunk);
  target.memory += part.offset * element_bytes_;
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
  if (!together_) {
    for (uint32_t index : state.parameters) came_[index] = 0;
  }
  state.arrived = 0;
  state.open = false;
}

void GradOffload::take(uint32_t index, const at::Tensor& grad, uint32_t step) {
  ELIXIR_CHECK(index < places_.size(), "parameter {} of {}", index, places_.size());
  const shm::ParameterPlace& place = places_[index];
  // The second gradient of a micro-step begins the next one.
  if (came_[index] != 0) together_ ? end_micro_step(step) : fill_up(place.chunk, step);
  const shm::ChunkRun run = shm::chunks_of(place, shape_);
  begin(run.end() - 1, step);
  const at::Tensor dense = (grad.is_sparse() ? grad.to_dense() : grad).contiguous();
  ELIXIR_CHECK(static_cast<uint64_t>(dense.numel()) == place.numel,
               "a gradient of {} elements for '{}' of {}", dense.numel(), place.name, place.numel);
  // Backwards, as chunks are reduced: each chunk of a run is complete with its part, so that one
  // block after the other goes down.
  for (uint32_t chunk = run.end(); chunk-- > run.first;) take_part(index, chunk, dense, step);
}

void GradOffload::take_part(uint32_t index, uint32_t chunk, const at::Tensor& grad, uint32_t step) {
  Chunk& state = chunks_[chunk];
  begin(chunk, step);
  store(places_[index], chunk, grad);
  came_[index] = 1;
  if (++state.arrived == state.parameters.size()) end(chunk, step);
}

// Ends the micro-step with zeros where parameters had no gradient in it. (One that has none in the
// whole step is not updated: Session::say_gradient tells elixird.)
void GradOffload::fill_up(uint32_t chunk, uint32_t step) {
  Chunk& state = chunks_[chunk];
  begin(chunk, step);
  for (uint32_t index : state.parameters) {
    if (came_[index] == 0 && !state.zeroed) store_zero(places_[index], chunk);
  }
  end(chunk, step);
}

// Of every chunk, in this rank's order: the exchange brings them into all ranks'.
void GradOffload::end_micro_step(uint32_t step) {
  ++ended_;
  for (uint32_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    if (chunks_[chunk].micro_steps < ended_) fill_up(chunk, step);
  }
  std::fill(came_.begin(), came_.end(), 0);
}

void GradOffload::store(const shm::ParameterPlace& place, uint32_t chunk, const at::Tensor& grad) {
  const shm::ParameterPart part = shm::part_in(place, shape_, chunk);
  const auto* from =
      static_cast<const std::byte*>(grad.const_data_ptr()) + part.first * element_bytes_;
  const uint64_t bytes = part.numel * element_bytes_;
  const GradTarget target = target_of(chunk, part);
  if (target.on_device) {
    device_.copy(Stream::kCompute, target.memory, from, bytes);
  } else {
    device_.download(Stream::kDownload, target.memory, from, bytes);  // done when it returns
  }
}

void GradOffload::store_zero(const shm::ParameterPlace& place, uint32_t chunk) {
  const shm::ParameterPart part = shm::part_in(place, shape_, chunk);
  const GradTarget target = target_of(chunk, part);
  const uint64_t bytes = part.numel * element_bytes_;
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
  ended_ = 0;
  std::fill(came_.begin(), came_.end(), 0);
}

void GradOffload::complete(uint32_t step) {
  const bool begun = std::find(came_.begin(), came_.end(), 1) != came_.end();
  if (together_ && (begun || ended_ == 0)) end_micro_step(step);
  for (uint32_t chunk = 0; !together_ && chunk < chunks_.size(); ++chunk) {
    const Chunk& state = chunks_[chunk];
    if (state.micro_steps == 0 || state.open) fill_up(chunk, step);
  }
  while (exchange_.others_go_on()) end_micro_step(step);
}

}  // namespace elixir
