#include "client/device/pinned_ranges.h"

#include <algorithm>
#include <exception>
#include <numeric>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/units.h"

namespace elixir {
namespace {

constexpr uint64_t kPageBytes = 4096;  // two pieces cannot share one

// As many slots as make whole pages, as often as the limit allows.
uint64_t bytes_of_a_piece(const HostRange& range, uint64_t limit_bytes) {
  if (range.bytes <= limit_bytes || range.slot_bytes == 0) return range.bytes;
  const uint64_t least = std::lcm(range.slot_bytes, kPageBytes);
  return std::max(least, limit_bytes / least * least);
}

}  // namespace

PinnedRanges::PinnedRanges(Device& device, const std::vector<HostRange>& ranges,
                           uint64_t piece_bytes)
    : device_(device) {
  uint64_t all_bytes = 0;
  for (const HostRange& range : ranges) all_bytes += range.bytes;
  const int64_t start_ns = monotonic_ns();
  WaitNotes notes(2);
  for (const HostRange& range : ranges) {
    const uint64_t step = bytes_of_a_piece(range, piece_bytes);
    for (uint64_t at = 0; at < range.bytes; at += step) {
      pin({range.data + at, std::min(step, range.bytes - at)});
      const double seconds = seconds_since(start_ns);
      if (!notes.due(seconds)) continue;
      log_info("page_locking", "done=\"{}\" of=\"{}\" seconds={:.0f}", format_bytes(pinned_bytes_),
               format_bytes(all_bytes), seconds);
    }
  }
  if (refused_bytes_ == 0) return;
  log_warn("not_page_locked", "bytes=\"{}\" of=\"{}\" text=\"{}\"", format_bytes(refused_bytes_),
           format_bytes(all_bytes), first_refusal_);
}

void PinnedRanges::pin(const HostRange& piece) {
  ELIXIR_CHECK(piece.data != nullptr && piece.bytes > 0, "nothing to page-lock");
  const Status status = device_.pin(piece.data, piece.bytes);
  if (status.ok()) {
    pieces_.push_back(piece.data);
    pinned_bytes_ += piece.bytes;
    return;
  }
  if (refused_bytes_ == 0) first_refusal_ = status.message();
  refused_bytes_ += piece.bytes;
}

// A run that ends by an exception leaves copies behind.
void PinnedRanges::wait_for_device() {
  const DeviceEvent event = device_.create_event();
  for (int stream = 0; stream < kStreams; ++stream) {
    device_.record(event, static_cast<Stream>(stream));
    device_.synchronize(event);
  }
}

PinnedRanges::~PinnedRanges() {
  try {
    wait_for_device();
  } catch (const std::exception& failure) {
    log_warn("device_failed", "text=\"{}\"", failure.what());
  }
  for (const std::byte* piece : pieces_) device_.unpin(piece);
}

}  // namespace elixir
