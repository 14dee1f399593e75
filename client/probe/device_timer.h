#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "base/clock.h"
#include "client/device/device.h"

namespace elixir::probe {

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

  // The least of so many rounds, because other work only adds to it. One more goes before, which
  // loads what it needs.
  double least_seconds(int rounds, const std::function<void()>& work) {
    seconds(work);
    double least = seconds(work);
    for (int round = 1; round < rounds; ++round) least = std::min(least, seconds(work));
    return least;
  }

 private:
  Device& device_;
  DeviceEvent done_;
};

}  // namespace elixir::probe
