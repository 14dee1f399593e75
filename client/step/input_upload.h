#pragma once

#include <cstddef>
#include <vector>

#include "client/device/device.h"

namespace elixir {

// Copies inputs to the device through page-locked memory. There is enough of it that the caller
// seldom waits until the device has read it. Used under the engine's mutex.
class InputUpload {
 public:
  explicit InputUpload(Device& device) : device_(device) {}

  // Enqueues a copy of `bytes` of values to memory of the device on kCompute. The values may be
  // changed at once.
  void upload(std::byte* device, const void* values, size_t bytes);

 private:
  // If all pieces together would be larger, it waits for the oldest piece and reuses it, if that is
  // large enough.
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
  size_t next_ = 0;   // index of the piece that was taken longest ago
  size_t bytes_ = 0;  // all pieces together
};

}  // namespace elixir
