#include "client/device/host_parcels.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/region_plan.h"
#include "base/throw_error.h"
#include "base/units.h"

namespace elixir {
namespace {

constexpr size_t kPartAlignBytes = 256;  // of a part in host memory

}  // namespace

HostParcels::HostParcels(Device& device, uint64_t limit_bytes)
    : device_(&device),
      slabs_(device, limit_bytes, kActivationSlabBytes),
      computed_(device.create_event()) {}

std::shared_ptr<HostParcels::Parcel> HostParcels::put(std::unique_ptr<ParcelMemory> memory) {
  size_t bytes = 0;
  for (const DevicePart& part : memory->parts()) bytes += round_up(part.bytes, kPartAlignBytes);
  const auto parcel = std::make_shared<Parcel>(shared_from_this(), std::move(memory));
  const MutexLock lock(mutex_);
  if (device_ == nullptr) return nullptr;
  put_in_order();
  parcel->slabs_ = slabs_.take(bytes);
  if (parcel->slabs_.empty()) return nullptr;
  parcel->copied_ = take_event();
  parcels_.push_back(parcel.get());
  settle_newest();
  send(*parcel);
  newest_ = parcel.get();
  return parcel;
}

void HostParcels::settle() {
  const MutexLock lock(mutex_);
  if (device_ == nullptr) return;
  put_in_order();
  settle_newest();
}

void HostParcels::bring_next() {
  const MutexLock lock(mutex_);
  if (device_ == nullptr) return;
  put_in_order();
  bring_before(parcels_.size());
}

HostParcels::Traffic HostParcels::traffic() const {
  const MutexLock lock(mutex_);
  return {.down_bytes = down_bytes_, .up_bytes = up_bytes_, .host_bytes = slabs_.held_bytes()};
}

void HostParcels::close() noexcept {
  const MutexLock lock(mutex_);
  if (device_ == nullptr) return;
  try {
    put_in_order();
    settle_newest();
    if (coming_ != nullptr) leave(*std::exchange(coming_, nullptr));
  } catch (const std::exception& failure) {
    log_warn("activations_end", "text=\"{}\"", failure.what());
  }
  device_ = nullptr;
}

void HostParcels::take(Parcel& parcel) {
  const MutexLock lock(mutex_);
  device();
  put_in_order();
  if (newest_ == &parcel) {
    newest_ = nullptr;
  } else if (coming_ != &parcel) {
    // Another backward than the one that was expected.
    if (coming_ != nullptr) leave(*std::exchange(coming_, nullptr));
    parcel.memory_->make();
    bring(parcel);
  }
  if (coming_ == &parcel) coming_ = nullptr;
  device().wait(Stream::kCompute, parcel.copied_);
  parcel.state_ = State::kTaken;
  const auto place = std::find(parcels_.begin(), parcels_.end(), &parcel);
  ELIXIR_CHECK(place != parcels_.end(), "a parcel is taken that was not put");
  bring_before(static_cast<size_t>(place - parcels_.begin()));
}

void HostParcels::end(Parcel& parcel) {
  const MutexLock lock(mutex_);
  std::erase(parcels_, &parcel);
  const bool in_flight = newest_ == &parcel || coming_ == &parcel;
  if (newest_ == &parcel) newest_ = nullptr;
  if (coming_ == &parcel) coming_ = nullptr;
  if (parcel.slabs_.empty() || device_ == nullptr) return;
  dropped_.push_back(
      {std::move(parcel.memory_), std::move(parcel.slabs_), parcel.copied_, in_flight});
}

Device& HostParcels::device() {
  if (device_ == nullptr) {
    throw Error(error(Code::kInvalidArgument,
                      "backward of a region of elixir::checkpoint() whose tensors are in host "
                      "memory, and the optimizer that held them has ended: call backward() before "
                      "that"));
  }
  return *device_;
}

DeviceEvent HostParcels::take_event() {
  if (events_.empty()) return device().create_event();
  const DeviceEvent event = events_.back();
  events_.pop_back();
  return event;
}

// Operators may use device memory again that a copy still reads or writes: they wait for it. A
// slab's next copy runs behind operators that have waited for its last one.
void HostParcels::put_in_order() {
  while (!dropped_.empty()) {
    const Dropped dropped = std::move(dropped_.back());
    dropped_.pop_back();
    if (dropped.in_flight) device().wait(Stream::kCompute, dropped.copied);
    slabs_.give(dropped.slabs);
    events_.push_back(dropped.copied);
  }
}

// Each part's bytes, over slabs that touch, behind the operators enqueued so far. Returns their
// number.
uint64_t HostParcels::copy(Parcel& parcel, Stream stream) {
  Device& on = device();
  on.record(computed_, Stream::kCompute);
  on.wait(stream, computed_);
  const size_t slab_bytes = slabs_.slab_bytes();
  const std::vector<std::byte*>& slabs = parcel.slabs_;
  size_t begin = 0;
  uint64_t copied_bytes = 0;
  for (const DevicePart& part : parcel.memory_->parts()) {
    for (size_t at = 0; at < part.bytes;) {
      const size_t place = begin + at, first = place / slab_bytes, in_slab = place % slab_bytes;
      const size_t most = std::min<size_t>(kActivationPieceBytes, part.bytes - at);
      size_t room = slab_bytes - in_slab;
      for (size_t i = first; room < most && slabs[i + 1] == slabs[i] + slab_bytes; ++i) {
        room += slab_bytes;
      }
      const size_t bytes = std::min(room, most);
      std::byte* const memory = part.memory + at;
      std::byte* const host = slabs[first] + in_slab;
      if (stream == Stream::kKeepDown) {
        on.download(stream, host, memory, bytes);
      } else {
        on.upload(stream, memory, host, bytes);
      }
      at += bytes;
    }
    begin += round_up(part.bytes, kPartAlignBytes);
    copied_bytes += part.bytes;
  }
  on.record(parcel.copied_, stream);
  return copied_bytes;
}

void HostParcels::send(Parcel& parcel) {
  down_bytes_ += copy(parcel, Stream::kKeepDown);
  parcel.state_ = State::kLeaving;
}

// Into its memory, which may be that of others before, and operators enqueued then still use it.
void HostParcels::bring(Parcel& parcel) {
  up_bytes_ += copy(parcel, Stream::kKeepUp);
  parcel.state_ = State::kComing;
  coming_ = &parcel;
}

// The newest of parcels_[0, end) that is away. If the device has no memory for it now, its take()
// tries again.
void HostParcels::bring_before(size_t end) {
  if (coming_ != nullptr) return;
  for (size_t i = end; i-- > 0;) {
    if (parcels_[i]->state_ != State::kAway) continue;
    try {
      parcels_[i]->memory_->make();
    } catch (const std::exception& failure) {
      log_warn("activations_late", "text=\"{}\"", failure.what());
      return;
    }
    return bring(*parcels_[i]);
  }
}

// Its memory leaves the device once its copy is over.
void HostParcels::leave(Parcel& parcel) {
  device().wait(Stream::kCompute, parcel.copied_);
  parcel.memory_->drop();
  parcel.state_ = State::kAway;
}

void HostParcels::settle_newest() {
  if (newest_ != nullptr) leave(*std::exchange(newest_, nullptr));
}

}  // namespace elixir
