#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "client/device/device.h"
#include "client/session/host_range.h"

namespace elixir {

// Page-locks ranges for the device while it lives. It cuts a range between slots into pieces of at
// most `piece_bytes`, because CUDA rejects a copy that crosses two pieces. A single slot, or a
// range without slots, is one piece of any length. If it takes longer than 2 s, it logs its
// progress. If the system does not lock a piece, one warning gives the cause and the remedy. Copies
// of that memory then are slower and hold up the host.
//
// It must end before the ranges are unmapped and before the device. The destructor first waits for
// the device's copies.
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
  std::string first_refusal_;  // the text of the first error
};

}  // namespace elixir
