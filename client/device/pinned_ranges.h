#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "client/device/device.h"
#include "client/session/host_range.h"

namespace elixir {

// Page-locks ranges for the device while it lives, in pieces of at most `piece_bytes`, cut between
// slots: CUDA refuses a copy that crosses two pieces. One slot, or a range that has none, is one
// piece however long. With progress in the log once it takes longer than 2 s. What the system
// refuses to lock stays as it is: one loud warning with cause and remedy, and copies that are
// slower and hold up the host. Ends before the ranges are unmapped and before the device, and waits
// for the device's copies first.
class PinnedRanges {
 public:
  PinnedRanges(Device& device, const std::vector<HostRange>& ranges,
               uint64_t piece_bytes = Device::kPinPieceBytes);
  ~PinnedRanges();
  PinnedRanges(const PinnedRanges&) = delete;
  PinnedRanges& operator=(const PinnedRanges&) = delete;

  uint64_t pinned_bytes() const { return pinned_bytes_; }
  uint64_t refused_bytes() const { return refused_bytes_; }

 private:
  void pin(const HostRange& range);
  void wait_for_device();

  Device& device_;
  std::vector<const std::byte*> pieces_;
  uint64_t pinned_bytes_ = 0, refused_bytes_ = 0;
  std::string first_refusal_;  // its text
};

}  // namespace elixir
