#pragma once

#include <cstddef>
#include <vector>

#include "client/device/device.h"

namespace elixir {

// Inputs on their way to the device. They are put into page-locked memory first, of which there is
// so much that as a rule nobody waits for the device to have read it. Under the engine's mutex.
class InputUpload {
 public:
  explicit InputUpload(Device& device) : device_(device) {}

  // Enqueues on kCompute what brings `bytes` of values to memory of the device; they may be changed
  // at once.
  void upload(std::byte* device, const void* values, size_t bytes);

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
