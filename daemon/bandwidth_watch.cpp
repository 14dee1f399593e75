#include "daemon/bandwidth_watch.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace elixir::daemon {

uint32_t BandwidthWatch::started(const Bandwidth& measured, bool idle, uint32_t most_threads,
                                 uint64_t cache_bytes) {
  cache_bytes_ = static_cast<double>(cache_bytes);
  threads_ = idle ? measured.threads : std::max(measured.threads, most_threads);
  if (measured.gb_s <= 0) return threads_;
  gb_s_ = measured.gb_s;
  basis_ = idle ? Basis::kMeasured : Basis::kDisturbed;
  wants_ = !idle;
  return threads_;
}

bool BandwidthWatch::begin(int64_t now_ns, bool quiet, bool idle) {
  if (!quiet || !idle) {
    quiet_since_ns_ = -1;
    return false;
  }
  if (quiet_since_ns_ < 0) quiet_since_ns_ = now_ns;
  const bool due = now_ns - quiet_since_ns_ >= kQuietNs && now_ns >= next_ns_;
  if (!wants_ || measuring_ || !due) return false;
  measuring_ = true;
  disturbed_ = false;
  return true;
}

bool BandwidthWatch::ended(int64_t now_ns, const Bandwidth& measured, bool idle) {
  ELIXIR_CHECK(measuring_, "a measurement ends that did not begin");
  measuring_ = false;
  next_ns_ = now_ns + kAgainNs;
  if (disturbed_ || !idle || measured.gb_s <= 0) {
    gb_s_ = std::max(gb_s_, measured.gb_s);  // so much it gives at least
    return false;
  }
  measured_idle_ = true;
  wants_ = false;
  wanted_threads_ = measured.threads == threads_ ? 0 : measured.threads;
  const bool exceeded = moved_gb_s_ > measured.gb_s;
  gb_s_ = std::max(measured.gb_s, moved_gb_s_);
  basis_ = exceeded ? Basis::kUpdate : Basis::kMeasured;
  return true;
}

void BandwidthWatch::moved(double gb_s, double bytes) {
  if (bytes <= kCachesPassed * cache_bytes_) return;
  moved_gb_s_ = std::max(moved_gb_s_, gb_s);
  if (basis_ == Basis::kNone || gb_s <= gb_s_) return;
  gb_s_ = gb_s;
  basis_ = Basis::kUpdate;
  wants_ = !measured_idle_;
}

std::optional<double> BandwidthWatch::share_of(double gb_s) const {
  if (basis_ == Basis::kNone) return 0;
  return gb_s <= gb_s_ ? std::optional(gb_s / gb_s_) : std::nullopt;
}

void BandwidthWatch::chosen() { threads_ = std::exchange(wanted_threads_, 0); }

}  // namespace elixir::daemon
