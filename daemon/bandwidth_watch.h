#pragma once

#include <cstdint>
#include <optional>

#include "base/enum_names.h"
#include "daemon/bandwidth.h"

namespace elixir::daemon {

// Keeps elixird's figure of its memory's bandwidth, and decides when to measure it again.
//
// A figure that was measured beside other work, or that an update exceeded, is a lower bound. It is
// measured again once no job has had work for kQuietNs and the machine is idle. A measurement that
// other work disturbs can only raise the lower bound. This class has no clock, thread or
// measurement.
class BandwidthWatch {
 public:
  enum class Basis {
    kNone,       // not measured: no figure
    kMeasured,   // on an idle machine
    kDisturbed,  // beside other work: a lower bound
    kUpdate,     // an update moved more than was measured: a lower bound
  };
  static constexpr int64_t kQuietNs = 10'000'000'000;
  static constexpr int64_t kAgainNs = 60'000'000'000;  // between two measurements

  // Takes the measurement of the start. Returns how many workers to start: the number from which on
  // more gain nothing. Beside other work, such as the launch itself, that number comes out too
  // small, and an elixird that is never idle would keep it. So without `idle` the result is at
  // least `most_threads`. `idle`: nobody else used the machine. `cache_bytes`: size of the
  // processors' last-level caches.
  uint32_t started(const Bandwidth& measured, bool idle, uint32_t most_threads = 0,
                   uint64_t cache_bytes = 0);

  // Whether to measure now; if so, ended() follows. `quiet`: no job has had work since the last
  // call.
  bool begin(int64_t now_ns, bool quiet, bool idle);
  // A job has work, so a measurement in progress will not count.
  void disturb() { disturbed_ = true; }
  // Returns whether the measurement counts. `idle`: whether the machine was idle during it.
  bool ended(int64_t now_ns, const Bandwidth& measured, bool idle);

  // An update moved `bytes` at the rate `gb_s`. It does not count if the caches hold much of it.
  void moved(double gb_s, double bytes);
  // The rate as a share of the bandwidth. 0: the bandwidth was not measured. Empty: the rate is
  // above it, thanks to caches.
  std::optional<double> share_of(double gb_s) const;

  // How many workers are enough, if there is now another number of them; else 0. chosen() accepts
  // it.
  uint32_t wanted_threads() const { return wanted_threads_; }
  void chosen();

  double gb_s() const { return gb_s_; }
  Basis basis() const { return basis_; }
  bool wants_measurement() const { return wants_; }
  bool measuring() const { return measuring_; }
  // Whether begin() or chosen() is still to come.
  bool waits() const { return wants_ || wanted_threads_ > 0; }

 private:
  // An update counts if its bytes are more than this many times the caches: most come from memory.
  static constexpr double kCachesPassed = 2;

  double cache_bytes_ = 0;
  double gb_s_ = 0, moved_gb_s_ = 0;  // the figure; the most that an update moved
  Basis basis_ = Basis::kNone;
  uint32_t threads_ = 0, wanted_threads_ = 0;
  bool wants_ = false, measuring_ = false, disturbed_ = false;
  bool measured_idle_ = false;  // on an idle machine: an update above it asks for no new one
  int64_t quiet_since_ns_ = -1, next_ns_ = 0;
};

inline constexpr EnumName<BandwidthWatch::Basis> kBasisNames[] = {
    {"none", BandwidthWatch::Basis::kNone},
    {"measured", BandwidthWatch::Basis::kMeasured},
    {"disturbed", BandwidthWatch::Basis::kDisturbed},
    {"update", BandwidthWatch::Basis::kUpdate}};

}  // namespace elixir::daemon
