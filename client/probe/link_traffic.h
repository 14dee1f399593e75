#pragma once

#include <atomic>
#include <cstddef>
#include <string>
#include <thread>

#include "base/status.h"
#include "client/device/device.h"

namespace elixir::probe {

// Copies over a device's link both ways, without a pause, from construction to stop().
class LinkTraffic {
 public:
  // Copies pieces of `piece_bytes`. Two are under way in each direction. The device must outlive
  // it, and nobody else may call the device. Throws what the device throws.
  LinkTraffic(Device& device, size_t piece_bytes);
  ~LinkTraffic();
  LinkTraffic(const LinkTraffic&) = delete;
  LinkTraffic& operator=(const LinkTraffic&) = delete;

  // Ends the copies. Returns their error, or OK. Call it once.
  Status stop();

 private:
  static constexpr int kInFlight = 2;
  struct Side {
    Stream stream;
    std::byte* host[kInFlight];
    std::byte* device[kInFlight];
    DeviceEvent copied[kInFlight];
  };
  void run();

  Device& device_;
  const size_t piece_bytes_;
  Side sides_[2];
  std::atomic<bool> stop_{false};  // orders nothing else: join() does
  Status status_;                  // written by the thread, read behind join()
  std::thread thread_;
};

}  // namespace elixir::probe
