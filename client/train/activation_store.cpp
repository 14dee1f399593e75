#include "client/train/activation_store.h"

#include <ATen/Functions.h>

#include <utility>

#include "base/check.h"
#include "client/torch_device/torch_stream.h"

namespace elixir {
namespace {

// Tensors of one region.
class TensorMemory final : public ParcelMemory {
 public:
  explicit TensorMemory(const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& tensor : tensors) {
      shapes_.push_back({tensor.sizes().vec(), tensor.strides().vec(), tensor.options()});
      tensors_.push_back(tensor.detach());
    }
  }

  void make() override {
    std::vector<at::Tensor> made;
    for (const Shape& shape : shapes_) {
      made.push_back(at::empty_strided(shape.sizes, shape.strides, shape.options));
    }
    tensors_ = std::move(made);
  }
  void drop() override { tensors_.clear(); }
  std::vector<DevicePart> parts() const override {
    std::vector<DevicePart> parts;
    for (const at::Tensor& tensor : tensors_) {
      parts.push_back({static_cast<std::byte*>(tensor.mutable_data_ptr()),
                       static_cast<size_t>(tensor.numel()) * tensor.element_size()});
    }
    return parts;
  }
  std::vector<at::Tensor> take() { return std::exchange(tensors_, {}); }

 private:
  struct Shape {
    std::vector<int64_t> sizes, strides;
    at::TensorOptions options;
  };
  std::vector<Shape> shapes_;
  std::vector<at::Tensor> tensors_;  // none: they are in host memory alone
};

class SentParcel final : public SentTensors {
 public:
  SentParcel(std::shared_ptr<HostParcels::Parcel> parcel, TensorMemory* memory)
      : parcel_(std::move(parcel)), memory_(memory) {}

  std::vector<at::Tensor> get() override {
    parcel_->take();
    return memory_->take();
  }

 private:
  const std::shared_ptr<HostParcels::Parcel> parcel_;
  TensorMemory* const memory_;  // the parcel's
};

}  // namespace

ActivationStore::ActivationStore(Device& device, uint64_t limit_bytes)
    : torch_device_(torch_device(device)),
      parcels_(std::make_shared<HostParcels>(device, limit_bytes)) {}

bool ActivationStore::takes(const at::Tensor& tensor) const {
  return can_be_sent(tensor) && tensor.device() == torch_device_ &&
         tensor.const_data_ptr() != nullptr;
}

std::shared_ptr<SentTensors> ActivationStore::put(const std::vector<at::Tensor>& tensors) {
  ELIXIR_CHECK(!tensors.empty(), "a region puts no tensor");
  auto memory = std::make_unique<TensorMemory>(tensors);
  TensorMemory* const own = memory.get();
  std::shared_ptr<HostParcels::Parcel> parcel = parcels_->put(std::move(memory));
  if (parcel == nullptr) return nullptr;
  return std::make_shared<SentParcel>(std::move(parcel), own);
}

}  // namespace elixir
