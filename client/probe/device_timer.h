#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "base/clock.h"
#include "client/device/device.h"

namespace elixir::probe {

// The least of so many rounds, because other work only adds to it.
template <typename Seconds>
double least_of(int rounds, const Seconds& seconds) {
  double least = seconds();
  for (int round = 1; round < rounds; ++round) least = std::min(least, seconds());
  return least;
}

// Times work that is enqueued on a device's compute stream.
class DeviceTimer {
 public:
  explicit DeviceTimer(Device& device) : device_(device), done_(device.create_event()) {}

  void wait() {
    device_.record(done_, Stream::kCompute);
    device_.synchronize(done_);
  }

  double seconds(const std::function<void()>& work) {
    const int64_t begin_ns = monotonic_ns();
    work();
    wait();
    return seconds_since(begin_ns);
  }

  // The least of so many rounds. One more goes before, which loads what it needs.
  double least_seconds(int rounds, const std::function<void()>& work) {
    seconds(work);
    return least_of(rounds, [&] { return seconds(work); });
  }

 private:
  Device& device_;
  DeviceEvent done_;
};

}  // namespace elixir::probe
