#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace elixir {

// Whether a tensor could be sent: it lies at the begin of ordinary memory of its own, without gaps.
// Parameters and views of them do not.
bool can_be_sent(const at::Tensor& tensor);

// Host memory for what checkpointed regions need only in backward. A region puts its tensors there
// at its forward's end, and gets them back when its backward begins. An optimizer provides it
// (client/train/activation_store.h); regions here only use it.

// The tensors of one region, from put() on, until this ends. Any thread may end it.
class SentTensors {
 public:
  virtual ~SentTensors() = default;
  // The tensors, with the same values, sizes and strides. They need no gradient. It may be called
  // again for another backward pass. Throws elixir::Error if the optimizer has ended.
  virtual std::vector<at::Tensor> get() = 0;
};

class ActivationHost {
 public:
  virtual ~ActivationHost() = default;

  // Whether put() can take it: it can be sent, and lies on the optimizer's device.
  virtual bool takes(const at::Tensor& tensor) const = 0;
  // Begins to send them. REQUIRES: takes() each, and there is one. The caller drops its own
  // tensors. Null: there is no room, or the optimizer has ended, so the caller keeps them.
  virtual std::shared_ptr<SentTensors> put(const std::vector<at::Tensor>& tensors) = 0;
  // A region that could put its tensors, but is the last of its pass to do so, keeps them. It calls
  // settle() in the place of put(), and bring_next() in the place of SentTensors::get().
  virtual void settle() = 0;
  virtual void bring_next() = 0;
};

// For regions that begin from now on, on this thread and on each that has set none of its own.
// Null: they send nothing, as at first. Any thread.
void set_activation_host(const std::shared_ptr<ActivationHost>& host);
std::shared_ptr<ActivationHost> activation_host();

}  // namespace elixir
