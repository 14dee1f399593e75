#pragma once

#include <cstdint>
#include <optional>

#include "base/enum_names.h"
#include "daemon/bandwidth.h"

namespace elixir::daemon {

// What elixird knows of its memory's bandwidth, and when it measures it again.
//
// A figure that was measured beside other work, or that an update exceeded, is a lower bound. It is
// measured again once no job has had work for kQuietNs and the machine is idle; a measurement that
// work disturbs counts for nothing but a higher lower bound. No clock, thread or measurement is in
// here.
class BandwidthWatch {
 public:
  enum class Basis {
    kNone,       // not measured: no figure
    kMeasured,   // on an idle machine
    kDisturbed,  // beside other work: a lower bound
    kUpdate,     // an update moved so much, more than was measured: a lower bound
  };
  static constexpr int64_t kQuietNs = 10'000'000'000;
  static constexpr int64_t kAgainNs = 60'000'000'000;  // between two measurements

  // The measurement at the start, and how many workers to start: those that gain by it. Beside
  // other work, often the launch's own, too few seem to be enough, and an elixird that never is
  // idle would keep those: then at least `most_threads`. `idle`: nobody else used the machine.
  // `cache_bytes`: of the processors' caches of the last level.
  uint32_t started(const Bandwidth& measured, bool idle, uint32_t most_threads = 0,
                   uint64_t cache_bytes = 0);

  // Whether to measure now; then ended() follows. `quiet`: no job has had work since the last call.
  bool begin(int64_t now_ns, bool quiet, bool idle);
  // A job has work: the measurement under way, if there is one, will not count.
  void disturb() { disturbed_ = true; }
  // True: it counts. `idle`: as the machine was meanwhile.
  bool ended(int64_t now_ns, const Bandwidth& measured, bool idle);

  // An update moved so many bytes, so fast. What fits into the caches says nothing of the memory.
  void moved(double gb_s, double bytes);
  // Of the bandwidth; 0: it was not measured. Empty: it is more, out of the caches.
  std::optional<double> share_of(double gb_s) const;

  // So many workers are enough, and there are others than that; 0: they stay. Until chosen().
  uint32_t wanted_threads() const { return wanted_threads_; }
  void chosen();

  double gb_s() const { return gb_s_; }
  Basis basis() const { return basis_; }
  bool wants_measurement() const { return wants_; }
  bool measuring() const { return measuring_; }
  // There is something to wait for: begin(), or chosen().
  bool waits() const { return wants_ || wanted_threads_ > 0; }

 private:
  // Of an update's bytes, so that most of them come from memory.
  static constexpr double kCachesPassed = 2;

  double cache_bytes_ = 0;
  double gb_s_ = 0, moved_gb_s_ = 0;  // the figure; the most that an update moved
  Basis basis_ = Basis::kNone;
  uint32_t threads_ = 0, wanted_threads_ = 0;
  bool wants_ = false, measuring_ = false, disturbed_ = false;
  bool measured_idle_ = false;  // by begin() and ended(): what exceeds that asks for no other one
  int64_t quiet_since_ns_ = -1, next_ns_ = 0;
};

inline constexpr EnumName<BandwidthWatch::Basis> kBasisNames[] = {
    {"none", BandwidthWatch::Basis::kNone},
    {"measured", BandwidthWatch::Basis::kMeasured},
    {"disturbed", BandwidthWatch::Basis::kDisturbed},
    {"update", BandwidthWatch::Basis::kUpdate}};

}  // namespace elixir::daemon
