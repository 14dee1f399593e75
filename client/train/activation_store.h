#pragma once

#include <memory>
#include <vector>

#include "base/mutex.h"
#include "client/device/device.h"
#include "client/device/host_slabs.h"
#include "client/tensors/activation_host.h"

namespace elixir {

// Sends tensors of checkpointed regions to host memory and brings them back, while operators run.
//
// At any time the tensors of one region at most are on the device for this store. In forward these
// are the newest ones, which are on their way down until the next put(). In backward they are the
// next ones, which come up from the previous get() on. So kCompute waits only where the link is
// slower than the operators between two such regions, and the memory that this takes is known.
//
// Copies go in pieces, slab by slab, so that copies of parameters and gradients in the same
// direction go between them. Regions end on any thread: what they had is put in order at the next
// call.
class ActivationStore final : public ActivationHost,
                              public std::enable_shared_from_this<ActivationStore> {
 public:
  struct Traffic {
    uint64_t down_bytes = 0, up_bytes = 0;  // since construction
    uint64_t host_bytes = 0;                // that it holds
  };

  // `limit_bytes` of host memory at most. `device` must be there until close().
  ActivationStore(Device& device, uint64_t limit_bytes);

  bool takes(const at::Tensor& tensor) const override;
  std::shared_ptr<SentTensors> put(const std::vector<at::Tensor>& tensors) override;
  void settle() override;
  void bring_next() override;

  Traffic traffic() const;
  // The device ends. Regions that have something here can have no backward any more.
  void close();

 private:
  class Parcel;
  enum class State : uint8_t { kLeaving, kAway, kComing, kTaken };
  // A tensor that was put, while it is on the device, and what it is there.
  struct Sent {
    at::Tensor tensor;
    std::vector<int64_t> sizes, strides;
    at::ScalarType type = at::kFloat;
    size_t bytes = 0;
    size_t begin = 0;  // in the parcel's host memory
  };
  // What an ended region leaves behind.
  struct Dropped {
    std::vector<Sent> tensors;
    std::vector<std::byte*> slabs;
    DeviceEvent copied;
    bool in_flight = false;
  };

  std::vector<at::Tensor> get(Parcel& parcel);
  void drop(Parcel& parcel);
  Device& device() ELIXIR_REQUIRES(mutex_);  // throws after close()
  DeviceEvent take_event() ELIXIR_REQUIRES(mutex_);
  void put_in_order() ELIXIR_REQUIRES(mutex_);
  void send(Parcel& parcel) ELIXIR_REQUIRES(mutex_);
  void bring(Parcel& parcel) ELIXIR_REQUIRES(mutex_);
  template <typename Copy>
  void in_pieces(const Parcel& parcel, const Copy& copy) const ELIXIR_REQUIRES(mutex_);
  void bring_before(size_t end) ELIXIR_REQUIRES(mutex_);
  void leave(Parcel& parcel) ELIXIR_REQUIRES(mutex_);
  void settle_newest() ELIXIR_REQUIRES(mutex_);

  const at::Device torch_device_;
  mutable Mutex mutex_;
  Device* device_ ELIXIR_GUARDED_BY(mutex_);  // null: it has ended
  HostSlabs slabs_ ELIXIR_GUARDED_BY(mutex_);
  const DeviceEvent computed_;                              // work on kCompute before a copy
  std::vector<Parcel*> parcels_ ELIXIR_GUARDED_BY(mutex_);  // in the order of put()
  Parcel* newest_ ELIXIR_GUARDED_BY(mutex_) = nullptr;      // the only one that is kLeaving
  Parcel* coming_ ELIXIR_GUARDED_BY(mutex_) = nullptr;      // the only one that is kComing
  std::vector<Dropped> dropped_ ELIXIR_GUARDED_BY(mutex_);
  std::vector<DeviceEvent> events_ ELIXIR_GUARDED_BY(mutex_);  // in no parcel
  uint64_t down_bytes_ ELIXIR_GUARDED_BY(mutex_) = 0, up_bytes_ ELIXIR_GUARDED_BY(mutex_) = 0;
};

}  // namespace elixir
