#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "client/device/device.h"
#include "client/device/host_slabs.h"

namespace elixir {

// A part of a parcel, in device memory.
struct DevicePart {
  std::byte* memory = nullptr;
  size_t bytes = 0;
};

// The device memory of a parcel, which comes and goes. Calls come with HostParcels' mutex held.
class ParcelMemory {
 public:
  virtual ~ParcelMemory() = default;
  // Makes it again, for parts of the same lengths. Throws if the device has none.
  virtual void make() = 0;
  virtual void drop() = 0;
  virtual std::vector<DevicePart> parts() const = 0;  // REQUIRES: it is there
};

// Sends parcels to host memory and brings them back, while operators run. The parcels of a pass
// come back in the reverse order, as a rule.
//
// At any time one parcel at most has device memory for this. In forward it is the newest one, which
// is on its way down until the next put(). In backward it is the next one, which comes up from the
// previous take() on. So kCompute waits only if the link is slower than the operators between two
// parcels, and the memory that this takes is known.
//
// Note: docs/design/elixir.md, "one parcel on its way".
//
// Copies go in pieces of slabs that touch, so that copies of parameters and gradients in the same
// direction go between them. Parcels may end on any thread. Their memory is put in order at the
// next call.
class HostParcels : public std::enable_shared_from_this<HostParcels> {
 public:
  class Parcel;
  struct Traffic {
    uint64_t down_bytes = 0, up_bytes = 0;  // since construction
    uint64_t host_bytes = 0;                // held for parcels
  };

  // At most `limit_bytes` of host memory. `device` must be there until close().
  HostParcels(Device& device, uint64_t limit_bytes);

  // Begins to send. Null: there is no room, or the device has ended.
  std::shared_ptr<Parcel> put(std::unique_ptr<ParcelMemory> memory);
  // The newest one leaves the device, as with a put().
  void settle();
  // The newest one that is away begins to come, as with a take().
  void bring_next();

  Traffic traffic() const;
  // The device ends. Parcels cannot be taken any more. An error of the device is logged.
  void close() noexcept;

 private:
  enum class State : uint8_t { kLeaving, kAway, kComing, kTaken };
  // An ended parcel leaves this behind.
  struct Dropped {
    std::unique_ptr<ParcelMemory> memory;
    std::vector<std::byte*> slabs;
    DeviceEvent copied;
    bool in_flight = false;
  };

  void take(Parcel& parcel);
  void end(Parcel& parcel);
  Device& device() ELIXIR_REQUIRES(mutex_);  // throws after close()
  DeviceEvent take_event() ELIXIR_REQUIRES(mutex_);
  void put_in_order() ELIXIR_REQUIRES(mutex_);
  void send(Parcel& parcel) ELIXIR_REQUIRES(mutex_);
  void bring(Parcel& parcel) ELIXIR_REQUIRES(mutex_);
  uint64_t copy(Parcel& parcel, Stream stream) ELIXIR_REQUIRES(mutex_);
  void bring_before(size_t end) ELIXIR_REQUIRES(mutex_);
  void leave(Parcel& parcel) ELIXIR_REQUIRES(mutex_);
  void settle_newest() ELIXIR_REQUIRES(mutex_);

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

// From put() on, until it ends. Any thread may end it.
class HostParcels::Parcel {
 public:
  Parcel(std::shared_ptr<HostParcels> parcels, std::unique_ptr<ParcelMemory> memory)
      : parcels_(std::move(parcels)), memory_(std::move(memory)) {}
  ~Parcel() { parcels_->end(*this); }
  Parcel(const Parcel&) = delete;
  Parcel& operator=(const Parcel&) = delete;

  // Work on kCompute that is enqueued from now on finds its content in device memory. The caller
  // takes that memory over, or it stays until the parcel ends. May be called again. Throws
  // kInvalidArgument if the device has ended.
  void take() { parcels_->take(*this); }

 private:
  friend class HostParcels;

  const std::shared_ptr<HostParcels> parcels_;
  // The rest is under the mutex of parcels_.
  std::unique_ptr<ParcelMemory> memory_;
  std::vector<std::byte*> slabs_;  // the parts lie in them, one behind the other
  State state_ = State::kLeaving;
  DeviceEvent copied_;  // its latest copy
};

}  // namespace elixir
