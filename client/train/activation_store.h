#pragma once

#include <memory>
#include <vector>

#include "client/device/host_parcels.h"
#include "client/tensors/activation_host.h"

namespace elixir {

// The host memory of an optimizer for what checkpointed regions send. A region's tensors are a
// parcel (client/device/host_parcels.h).
class ActivationStore final : public ActivationHost {
 public:
  // `limit_bytes` of host memory at most. `device` must be there until close().
  ActivationStore(Device& device, uint64_t limit_bytes);

  bool takes(const at::Tensor& tensor) const override;
  std::shared_ptr<SentTensors> put(const std::vector<at::Tensor>& tensors) override;
  void settle() override { parcels_->settle(); }
  void bring_next() override { parcels_->bring_next(); }

  HostParcels::Traffic traffic() const { return parcels_->traffic(); }
  // The device ends. Regions that have something here can have no backward any more.
  void close() { parcels_->close(); }

 private:
  const at::Device torch_device_;
  const std::shared_ptr<HostParcels> parcels_;
};

}  // namespace elixir
