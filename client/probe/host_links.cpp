#include <algorithm>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/host_memory.h"
#include "base/units.h"
#include "client/device/paced_device.h"
#include "client/probe/links.h"
#include "client/probe/thread_team.h"

namespace elixir::probe {
namespace {

constexpr uint64_t kLeastBytes = 64 << 10;
constexpr double kPieceS = 2e-3;  // of an emulated link: long beside an awakening
// Under way at once, so that a thread that is held up for a while keeps no link waiting.
constexpr size_t kPieces = 6;

// A device with memory on both sides of its link, for either direction.
class Link {
 public:
  Link(const HostLinksOptions& options, uint64_t buffer_bytes) : device_({.link = options.link}) {
    double gb_s[] = {0, 0};
    if (options.link) gb_s[0] = options.link->h2d_gb_s, gb_s[1] = options.link->d2h_gb_s;
    for (size_t i = 0; i < 2; ++i) {
      Side& side = sides_[i];
      side.stream = i == 0 ? Stream::kUpload : Stream::kDownload;
      side.buffer_bytes = buffer_bytes;
      const auto paced = static_cast<uint64_t>(gb_s[i] * 1e9 * kPieceS);
      const uint64_t wanted = options.link ? paced : buffer_bytes / 16;
      side.piece_bytes = std::clamp(wanted, kLeastBytes, buffer_bytes);
      side.from = allocate(buffer_bytes);
      side.to = allocate(buffer_bytes);
      for (DeviceEvent& event : side.copied) event = device_.create_event();
    }
  }

  // Copies for `window_s`, and says how fast that was.
  double run(size_t direction, double window_s) {
    const Side& side = sides_[direction];
    const int64_t begin_ns = monotonic_ns();
    uint64_t copied_bytes = 0, at = 0;
    for (size_t piece = 0; piece < kPieces || seconds_since(begin_ns) < window_s; ++piece) {
      device_.synchronize(side.copied[piece % kPieces]);  // done, the first time
      if (at + side.piece_bytes > side.buffer_bytes) at = 0;
      if (direction == 0) {
        device_.upload(side.stream, side.to + at, side.from + at, side.piece_bytes);
      } else {
        device_.download(side.stream, side.to + at, side.from + at, side.piece_bytes);
      }
      device_.record(side.copied[piece % kPieces], side.stream);
      at += side.piece_bytes;
      copied_bytes += side.piece_bytes;
    }
    for (const DeviceEvent event : side.copied) device_.synchronize(event);
    return 1e-9 * static_cast<double>(copied_bytes) / seconds_since(begin_ns);
  }

 private:
  struct Side {
    Stream stream;
    uint64_t buffer_bytes, piece_bytes;
    std::byte* from;
    std::byte* to;
    DeviceEvent copied[kPieces];
  };
  std::byte* allocate(uint64_t bytes) {
    return device_.allocate(bytes, "a copy to measure", "end other programs");
  }

  PacedDevice device_;
  Side sides_[2];  // up, down
};

}  // namespace

LinkRates measure_host_links(const HostLinksOptions& options) {
  const uint64_t fits = memory_room().available_bytes / 64 / options.devices;
  const uint64_t buffer_bytes =
      std::max(kLeastBytes, std::min(options.buffer_bytes, fits) / kLeastBytes * kLeastBytes);
  std::vector<std::unique_ptr<Link>> links;
  for (uint32_t i = 0; i < options.devices; ++i) {
    links.push_back(std::make_unique<Link>(options, buffer_bytes));
  }
  const size_t n = links.size();
  ThreadTeam one_way(static_cast<int>(n)), both_ways(static_cast<int>(2 * n));
  // Thread i drives link i % n; of both directions, the first n threads drive `first`.
  const auto measure = [&](ThreadTeam& team, size_t first) {
    std::vector<double> gb_s(static_cast<size_t>(team.threads()));
    team.time([&](int thread) {
      const auto i = static_cast<size_t>(thread);
      gb_s[i] = links[i % n]->run((first + i / n) % 2, options.window_s);
    });
    double sum = 0;
    for (const double one : gb_s) sum += one;
    return sum;
  };
  LinkRates best;
  for (int round = 0; round < options.rounds; ++round) {
    best.h2d_gb_s = std::max(best.h2d_gb_s, measure(one_way, 0));
    best.d2h_gb_s = std::max(best.d2h_gb_s, measure(one_way, 1));
    best.both_gb_s = std::max(best.both_gb_s, measure(both_ways, 0));
  }
  return best;
}

}  // namespace elixir::probe
