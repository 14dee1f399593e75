#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "client/device/device.h"

namespace elixir {

// Inputs on their way to the device. They are put into page-locked memory first, of which there is
// so much that as a rule nobody waits for the device to have read it. Owned by the thread that runs
// the model.
class InputUpload {
 public:
  explicit InputUpload(Device& device) : device_(device) {}

  // A tensor of the same values, shape and strides on the device, for what is enqueued on kCompute
  // from now on; `values` may be changed at once. Where they lie there already: themselves.
  at::Tensor upload(const at::Tensor& values);

 private:
  // Beyond it the oldest piece is waited for, if it is large enough.
  static constexpr size_t kMostBytes = size_t{256} << 20;
  static constexpr size_t kLeastPieceBytes = 4096;

  struct Piece {
    std::byte* memory;
    size_t bytes;
    DeviceEvent read;  // the device has read it
  };

  const Piece& take(size_t bytes);

  Device& device_;
  std::vector<Piece> pieces_;
  size_t next_ = 0;   // of pieces_: the one taken the longest ago
  size_t bytes_ = 0;  // of all
};

}  // namespace elixir
