// Data path, hop 1 of 6: gradients go from the device into the grad slots.

#include "client/offload/grad_offload.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cstring>

#include "client/error.h"

namespace elixir {

GradOffload::GradOffload(Session& session, Exchange& exchange,
                         std::vector<shm::ParameterPlace> places)
    : session_(session),
      exchange_(exchange),
      places_(std::move(places)),
      expected_(session.shape().n_chunks, 0),
      arrived_(session.shape().n_chunks, 0),
      slot_step_(session.shape().n_chunks, 0),
      present_(places_.size(), 0) {
  for (const shm::ParameterPlace& place : places_) ++expected_[place.chunk];
}

// elixird reads the slot for step-1 until it has updated the chunk.
void GradOffload::await_slot(uint32_t chunk, uint32_t step) {
  if (slot_step_[chunk] == step) return;
  throw_if_error(session_.wait_param(chunk, step - 1));
  slot_step_[chunk] = step;
}

void GradOffload::take(uint32_t index, const at::Tensor& grad, uint32_t step) {
  const shm::ParameterPlace& place = places_[index];
  await_slot(place.chunk, step);
  const at::Tensor dense = (grad.is_sparse() ? grad.to_dense() : grad).contiguous();
  if (present_[index] != 0) {
    const uint64_t offset_bytes = place.offset * element_bytes(session_.shape().type);
    std::byte* slot = session_.grad_slot(place.chunk) + offset_bytes;
    at::from_blob(slot, dense.sizes(), dense.options().device(at::kCPU)).add_(dense.cpu());
    return;
  }
  exchange_.send_grad(place.chunk, place.offset,
                      static_cast<const std::byte*>(dense.const_data_ptr()), place.numel);
  present_[index] = 1;
  if (++arrived_[place.chunk] == expected_[place.chunk]) session_.publish_grad(place.chunk, step);
}

void GradOffload::discard() {
  std::fill(present_.begin(), present_.end(), 0);
  std::fill(arrived_.begin(), arrived_.end(), 0);
}

void GradOffload::complete(uint32_t step) {
  const uint64_t bytes = element_bytes(session_.shape().type);
  for (size_t i = 0; i < places_.size(); ++i) {
    const shm::ParameterPlace& place = places_[i];
    if (arrived_[place.chunk] == expected_[place.chunk] || present_[i] != 0) continue;
    await_slot(place.chunk, step);
    std::memset(session_.grad_slot(place.chunk) + place.offset * bytes, 0, place.numel * bytes);
  }
  for (uint32_t chunk = 0; chunk < expected_.size(); ++chunk) {
    if (arrived_[chunk] != expected_[chunk]) session_.publish_grad(chunk, step);
  }
  discard();
}

}  // namespace elixir
