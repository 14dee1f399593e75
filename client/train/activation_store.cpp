#include "client/train/activation_store.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/region_plan.h"
#include "base/throw_error.h"
#include "base/units.h"
#include "client/torch_device/torch_stream.h"

namespace elixir {

class ActivationStore::Parcel final : public SentTensors {
 public:
  explicit Parcel(std::shared_ptr<ActivationStore> of) : store(std::move(of)) {}
  ~Parcel() override { store->drop(*this); }
  Parcel(const Parcel&) = delete;
  Parcel& operator=(const Parcel&) = delete;

  std::vector<at::Tensor> get() override { return store->get(*this); }

  // The rest is under the store's mutex.
  const std::shared_ptr<ActivationStore> store;
  std::vector<Sent> tensors;
  std::vector<std::byte*> slabs;  // the tensors lie in them, one behind the other
  State state = State::kLeaving;
  DeviceEvent copied;  // its latest copy
};

namespace {

constexpr size_t kAlignBytes = 256;  // of a tensor in host memory

size_t bytes_of(const at::Tensor& tensor) {
  return static_cast<size_t>(tensor.numel()) * tensor.element_size();
}

std::byte* memory_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr());
}

}  // namespace

ActivationStore::ActivationStore(Device& device, uint64_t limit_bytes)
    : torch_device_(torch_device(device)),
      device_(&device),
      slabs_(device, limit_bytes, kActivationPieceBytes),
      computed_(device.create_event()) {}

bool ActivationStore::takes(const at::Tensor& tensor) const {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.numel() > 0 &&
         tensor.device() == torch_device_ && tensor.is_non_overlapping_and_dense() &&
         !tensor.is_conj() && !tensor.is_neg();
}

std::shared_ptr<SentTensors> ActivationStore::put(const std::vector<at::Tensor>& tensors) {
  ELIXIR_CHECK(!tensors.empty(), "a region puts no tensor");
  const auto parcel = std::make_shared<Parcel>(shared_from_this());
  size_t end = 0;
  for (const at::Tensor& tensor : tensors) {
    parcel->tensors.push_back({.tensor = tensor.detach(),
                               .sizes = tensor.sizes().vec(),
                               .strides = tensor.strides().vec(),
                               .type = tensor.scalar_type(),
                               .bytes = bytes_of(tensor),
                               .begin = end});
    end += round_up(bytes_of(tensor), kAlignBytes);
  }
  const MutexLock lock(mutex_);
  if (device_ == nullptr) return nullptr;
  put_in_order();
  parcel->slabs = slabs_.take(end);
  if (parcel->slabs.empty()) return nullptr;
  parcel->copied = take_event();
  parcels_.push_back(parcel.get());
  settle_newest();
  send(*parcel);
  newest_ = parcel.get();
  return parcel;
}

void ActivationStore::settle() {
  const MutexLock lock(mutex_);
  if (device_ == nullptr) return;
  put_in_order();
  settle_newest();
}

void ActivationStore::bring_next() {
  const MutexLock lock(mutex_);
  if (device_ == nullptr) return;
  put_in_order();
  bring_before(parcels_.size());
}

ActivationStore::Traffic ActivationStore::traffic() const {
  const MutexLock lock(mutex_);
  return {.down_bytes = down_bytes_, .up_bytes = up_bytes_, .host_bytes = slabs_.held_bytes()};
}

void ActivationStore::close() {
  const MutexLock lock(mutex_);
  if (device_ == nullptr) return;
  put_in_order();
  settle_newest();
  if (coming_ != nullptr) leave(*std::exchange(coming_, nullptr));
  device_ = nullptr;
}

std::vector<at::Tensor> ActivationStore::get(Parcel& parcel) {
  const MutexLock lock(mutex_);
  device();
  put_in_order();
  if (newest_ == &parcel) {
    newest_ = nullptr;
  } else if (coming_ != &parcel) {
    // Another backward than the one that was expected.
    if (coming_ != nullptr) leave(*std::exchange(coming_, nullptr));
    bring(parcel);
  }
  if (coming_ == &parcel) coming_ = nullptr;
  device().wait(Stream::kCompute, parcel.copied);
  parcel.state = State::kTaken;
  std::vector<at::Tensor> tensors;
  for (Sent& sent : parcel.tensors) tensors.push_back(std::exchange(sent.tensor, at::Tensor()));
  const auto place = std::find(parcels_.begin(), parcels_.end(), &parcel);
  ELIXIR_CHECK(place != parcels_.end(), "tensors are asked for that were not put");
  bring_before(static_cast<size_t>(place - parcels_.begin()));
  return tensors;
}

// A region has ended, on any thread.
void ActivationStore::drop(Parcel& parcel) {
  const MutexLock lock(mutex_);
  std::erase(parcels_, &parcel);
  const bool in_flight = newest_ == &parcel || coming_ == &parcel;
  if (newest_ == &parcel) newest_ = nullptr;
  if (coming_ == &parcel) coming_ = nullptr;
  if (parcel.slabs.empty() || device_ == nullptr) return;
  dropped_.push_back(
      {std::move(parcel.tensors), std::move(parcel.slabs), parcel.copied, in_flight});
}

Device& ActivationStore::device() {
  if (device_ == nullptr) {
    throw Error(error(Code::kInvalidArgument,
                      "backward of a region of elixir::checkpoint() whose tensors are in host "
                      "memory, and the optimizer that held them has ended: call backward() before "
                      "that"));
  }
  return *device_;
}

DeviceEvent ActivationStore::take_event() {
  if (events_.empty()) return device().create_event();
  const DeviceEvent event = events_.back();
  events_.pop_back();
  return event;
}

// Operators may use device memory again that a copy still reads or writes: they wait for it. A
// slab's next copy runs behind operators that have waited for its last one.
void ActivationStore::put_in_order() {
  for (Dropped& dropped : dropped_) {
    if (dropped.in_flight) device().wait(Stream::kCompute, dropped.copied);
    slabs_.give(dropped.slabs);
    events_.push_back(dropped.copied);
  }
  dropped_.clear();
}

// Each tensor's bytes, from slab to slab.
template <typename Copy>
void ActivationStore::in_pieces(const Parcel& parcel, const Copy& copy) const {
  const size_t slab_bytes = slabs_.slab_bytes();
  for (const Sent& sent : parcel.tensors) {
    std::byte* const memory = memory_of(sent.tensor);
    for (size_t at = 0; at < sent.bytes;) {
      const size_t place = sent.begin + at, in_slab = place % slab_bytes;
      const size_t bytes = std::min(slab_bytes - in_slab, sent.bytes - at);
      copy(memory + at, parcel.slabs[place / slab_bytes] + in_slab, bytes);
      at += bytes;
    }
  }
}

void ActivationStore::send(Parcel& parcel) {
  Device& on = device();
  on.record(computed_, Stream::kCompute);
  on.wait(Stream::kKeepDown, computed_);
  in_pieces(parcel, [&](std::byte* tensor, std::byte* host, size_t bytes) {
    on.download(Stream::kKeepDown, host, tensor, bytes);
  });
  for (const Sent& sent : parcel.tensors) down_bytes_ += sent.bytes;
  on.record(parcel.copied, Stream::kKeepDown);
  parcel.state = State::kLeaving;
}

void ActivationStore::bring(Parcel& parcel) {
  std::vector<at::Tensor> tensors;
  for (const Sent& sent : parcel.tensors) {
    tensors.push_back(at::empty_strided(sent.sizes, sent.strides,
                                        at::TensorOptions(torch_device_).dtype(sent.type)));
  }
  // The tensors' memory may be of others, which operators enqueued before still use.
  Device& on = device();
  on.record(computed_, Stream::kCompute);
  on.wait(Stream::kKeepUp, computed_);
  for (size_t i = 0; i < tensors.size(); ++i) {
    parcel.tensors[i].tensor = std::move(tensors[i]);
    up_bytes_ += parcel.tensors[i].bytes;
  }
  in_pieces(parcel, [&](std::byte* tensor, std::byte* host, size_t bytes) {
    on.upload(Stream::kKeepUp, tensor, host, bytes);
  });
  on.record(parcel.copied, Stream::kKeepUp);
  parcel.state = State::kComing;
  coming_ = &parcel;
}

// The newest of parcels_[0, end) that is away.
void ActivationStore::bring_before(size_t end) {
  if (coming_ != nullptr) return;
  for (size_t i = end; i-- > 0;) {
    if (parcels_[i]->state != State::kAway) continue;
    return bring(*parcels_[i]);
  }
}

// Its tensors leave the device once their copy is over.
void ActivationStore::leave(Parcel& parcel) {
  device().wait(Stream::kCompute, parcel.copied);
  for (Sent& sent : parcel.tensors) sent.tensor.reset();
  parcel.state = State::kAway;
}

void ActivationStore::settle_newest() {
  if (newest_ != nullptr) leave(*std::exchange(newest_, nullptr));
}

}  // namespace elixir
