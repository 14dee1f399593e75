#include "client/device/pinned_ranges.h"

#include <algorithm>
#include <exception>

#include "base/clock.h"
#include "base/log.h"
#include "base/units.h"

namespace elixir {
namespace {

constexpr double kSayProgressEvery = 2.0;  // seconds

}  // namespace

PinnedRanges::PinnedRanges(Device& device, const std::vector<HostRange>& ranges) : device_(device) {
  uint64_t all_bytes = 0;
  for (const HostRange& range : ranges) all_bytes += range.bytes;
  const int64_t start_ns = monotonic_ns();
  double said_s = 0;
  for (const HostRange& range : ranges) {
    for (uint64_t at = 0; at < range.bytes; at += Device::kPinPieceBytes) {
      pin({range.data + at, std::min<uint64_t>(Device::kPinPieceBytes, range.bytes - at)});
      const double seconds = seconds_since(start_ns);
      if (seconds - said_s < kSayProgressEvery) continue;
      said_s = seconds;
      log_info("page_locking", "done=\"{}\" of=\"{}\" seconds={:.0f}", format_bytes(pinned_bytes_),
               format_bytes(all_bytes), seconds);
    }
  }
  if (refused_bytes_ == 0) return;
  log_warn("not_page_locked", "bytes=\"{}\" of=\"{}\" text=\"{}\"", format_bytes(refused_bytes_),
           format_bytes(all_bytes), first_refusal_);
}

void PinnedRanges::pin(const HostRange& piece) {
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
