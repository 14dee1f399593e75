#include "client/probe/link_traffic.h"

#include "base/check.h"
#include "base/throw_error.h"

namespace elixir::probe {

LinkTraffic::LinkTraffic(Device& device, size_t piece_bytes)
    : device_(device), piece_bytes_(piece_bytes) {
  ELIXIR_CHECK(piece_bytes > 0, "copies of nothing never end");
  for (Side& side : sides_) {
    side.stream = &side == &sides_[0] ? Stream::kUpload : Stream::kDownload;
    for (int i = 0; i < kInFlight; ++i) {
      side.host[i] = device_.allocate_host(piece_bytes, "copies to measure beside");
      side.device[i] =
          device_.allocate(piece_bytes, "copies to measure beside", "end other programs");
      side.copied[i] = device_.create_event();
    }
  }
  thread_ = std::thread([this] { run(); });
}

LinkTraffic::~LinkTraffic() {
  stop_.store(true, std::memory_order_relaxed);
  if (thread_.joinable()) thread_.join();
}

Status LinkTraffic::stop() {
  stop_.store(true, std::memory_order_relaxed);
  thread_.join();
  return status_;
}

void LinkTraffic::run() try {
  device_.make_current();
  for (size_t i = 0; !stop_.load(std::memory_order_relaxed); i = (i + 1) % kInFlight) {
    for (Side& side : sides_) {
      device_.synchronize(side.copied[i]);  // done, the first time
      if (side.stream == Stream::kUpload) {
        device_.upload(side.stream, side.device[i], side.host[i], piece_bytes_);
      } else {
        device_.download(side.stream, side.host[i], side.device[i], piece_bytes_);
      }
      device_.record(side.copied[i], side.stream);
    }
  }
  for (const Side& side : sides_) {
    for (const DeviceEvent event : side.copied) device_.synchronize(event);
  }
} catch (const Error& failure) {
  status_ = Status(failure.code(), failure.what());
}

}  // namespace elixir::probe
