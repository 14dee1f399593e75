// How long a HostDevice's copies and operators take, and what it says of that.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/clock.h"
#include "client/device/paced_device.h"

namespace elixir::times {
namespace {

constexpr size_t kBytes = 4096;
using Bytes = std::vector<std::byte>;

double seconds(const StreamSpan& span) {
  return static_cast<double>(span.end_ns - span.begin_ns) * 1e-9;
}

// Links here are slow, so that copying keeps their pace on a busy machine too; and what takes
// longer there is done in time in one of a few runs; how many it took is printed.
template <typename Run>
double least_of(const Run& run, double enough) {
  double least = INFINITY;
  int runs = 0;
  for (; runs < 8 && !(least <= enough); ++runs) least = std::min(least, run());
  std::printf("in time in run %d: %g, at most %g\n", runs, least, enough);
  return least;
}

class Copies {
 public:
  explicit Copies(const HostLink& link) : device({.link = link}), host_(kMost, std::byte{1}) {
    memory_ = device.allocate(2 * kMost, "blocks", "less");
    event_ = device.create_event();
    device.keep_spans();
    up(kMost);  // pages are touched
    down(kMost);
    wait();
    device.take_spans();
  }
  void up(size_t bytes) { device.upload(Stream::kUpload, memory_, host_.data(), bytes); }
  void down(size_t bytes) {
    device.download(Stream::kDownload, host_.data(), memory_ + kMost, bytes);
  }
  std::vector<StreamSpan> wait() {
    for (const Stream stream : {Stream::kUpload, Stream::kDownload}) {
      device.record(event_, stream);
      device.synchronize(event_);
    }
    return device.take_spans();
  }
  static constexpr size_t kMost = size_t{8} << 20;
  PacedDevice device;

 private:
  Bytes host_;
  std::byte* memory_;
  DeviceEvent event_;
};

void expect_apart(std::vector<StreamSpan> spans) {
  std::sort(spans.begin(), spans.end(),
            [](const auto& a, const auto& b) { return a.begin_ns < b.begin_ns; });
  for (size_t i = 0; i < spans.size(); ++i) {
    EXPECT_LE(spans[i].begin_ns, spans[i].end_ns);
    for (size_t k = i + 1; k < spans.size(); ++k) {
      if (spans[k].stream == spans[i].stream) {
        EXPECT_LE(spans[i].end_ns, spans[k].begin_ns);
      }
    }
  }
}

TEST(HostDeviceTime, CopiesTakeTheirBytesByTheBandwidth) {
  Copies copies({.h2d_gb_s = 0.25, .d2h_gb_s = 0.125});
  const double up_s = Copies::kMost / 0.25e9;
  const double ratio = least_of(
      [&] {
        const int64_t begin_ns = monotonic_ns();
        const uint64_t busy_ns = copies.device.link_times().h2d_busy_ns;
        for (int i = 0; i < 3; ++i) copies.up(Copies::kMost);
        const std::vector<StreamSpan> spans = copies.wait();
        EXPECT_GE(seconds_since(begin_ns), 3 * up_s);
        EXPECT_EQ(spans.size(), 3u);
        expect_apart(spans);
        double most = 0, sum_s = 0;
        for (const StreamSpan& span : spans) {
          EXPECT_EQ(span.stream, Stream::kUpload);
          EXPECT_EQ(span.bytes, Copies::kMost);
          EXPECT_GE(seconds(span), 0.999 * up_s);
          most = std::max(most, seconds(span) / up_s);
          sum_s += seconds(span);
        }
        EXPECT_NEAR(static_cast<double>(copies.device.link_times().h2d_busy_ns - busy_ns) * 1e-9,
                    sum_s, 1e-9);
        return most;
      },
      1.1);
  EXPECT_LE(ratio, 1.1);

  copies.down(Copies::kMost);
  const std::vector<StreamSpan> spans = copies.wait();
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].stream, Stream::kDownload);
  EXPECT_GE(seconds(spans[0]), 0.999 * Copies::kMost / 0.125e9);
}

// Lateness does not add up: hundreds of copies that each take about as long as an awakening.
TEST(HostDeviceTime, ManySmallCopiesTakeTheirBytesByTheBandwidthToo) {
  constexpr int kCopies = 400;
  constexpr size_t kEach = 64 << 10;
  Copies copies({.h2d_gb_s = 0.5, .d2h_gb_s = 0.5, .latency_us = 20});
  const double expected_s = kCopies * (kEach / 0.5e9 + 20e-6);
  const double ratio = least_of(
      [&] {
        for (int i = 0; i < kCopies; ++i) copies.up(kEach);
        const std::vector<StreamSpan> spans = copies.wait();
        expect_apart(spans);
        const double all_s =
            static_cast<double>(spans.back().end_ns - spans.front().begin_ns) * 1e-9;
        EXPECT_GE(all_s, 0.999 * expected_s);
        return all_s / expected_s;
      },
      1.1);
  EXPECT_LE(ratio, 1.1);
}

TEST(HostDeviceTime, BothDirectionsAreHeldToTheJointLimit) {
  const HostLink link{.h2d_gb_s = 0.25, .d2h_gb_s = 0.2, .joint_gb_s = 0.25};
  Copies copies(link);
  // One alone has its own bandwidth.
  EXPECT_LE(least_of([&] { return copies.up(Copies::kMost), seconds(copies.wait()[0]); },
                     1.1 * Copies::kMost / 0.25e9),
            1.1 * Copies::kMost / 0.25e9);
  const double joint_s = 2 * Copies::kMost / 0.25e9;
  const double ratio = least_of(
      [&] {
        copies.up(Copies::kMost);
        copies.down(Copies::kMost);
        const std::vector<StreamSpan> spans = copies.wait();
        EXPECT_EQ(spans.size(), 2u);
        const int64_t begin_ns = std::min(spans[0].begin_ns, spans[1].begin_ns);
        const int64_t end_ns = std::max(spans[0].end_ns, spans[1].end_ns);
        // Half each: neither is much faster than the other.
        for (const StreamSpan& span : spans) {
          if (seconds(span) < 0.9 * joint_s) return double{INFINITY};  // or one began late
        }
        const double both_s = static_cast<double>(end_ns - begin_ns) * 1e-9;
        EXPECT_GE(both_s, 0.97 * joint_s);
        return both_s / joint_s;
      },
      1.1);
  EXPECT_LE(ratio, 1.1);
}

TEST(HostDeviceTime, OneDirectionHasWhatTheOtherLeaves) {
  // Down takes 0.0625 of 0.3125; up could take 0.5.
  Copies copies({.h2d_gb_s = 0.5, .d2h_gb_s = 0.0625, .joint_gb_s = 0.3125});
  const double up_s = Copies::kMost / 0.25e9;
  const double ratio = least_of(
      [&] {
        copies.down(Copies::kMost / 2);
        copies.up(Copies::kMost);
        const std::vector<StreamSpan> spans = copies.wait();
        const StreamSpan& up = spans[spans[0].stream == Stream::kUpload ? 0 : 1];
        EXPECT_GE(seconds(up), 0.95 * up_s);
        return seconds(up) / up_s;
      },
      1.1);
  EXPECT_LE(ratio, 1.1);
}

TEST(HostDeviceTime, OperatorsTakeAtLeastSoLong) {
  constexpr int kOperators = 200;
  constexpr double kOperatorS = 500e-6;
  const double ratio = least_of(
      [&] {
        PacedDevice device({.operator_us = kOperatorS * 1e6});
        const int64_t begin_ns = monotonic_ns();
        for (int i = 0; i < kOperators; ++i) device.end_operator();
        const double took_s = seconds_since(begin_ns);
        EXPECT_GE(took_s, kOperators * kOperatorS);
        return took_s / (kOperators * kOperatorS);
      },
      1.1);
  EXPECT_LE(ratio, 1.1);
}

// Every operator waits for a copy that takes half an operator's time. Were the wait a part of the
// operator, all would take no longer than the operators.
TEST(HostDeviceTime, AStallIsNotTheOperatorsTime) {
  constexpr int kOperators = 20;
  constexpr double kOperatorS = 4e-3, kStallS = 2e-3;
  PacedDevice device({.link = HostLink{10, 10, 0, kStallS * 1e6}, .operator_us = kOperatorS * 1e6});
  std::byte* const memory = device.allocate(kBytes, "a block", "less");
  const Bytes host(kBytes, std::byte{1});
  const DeviceEvent up = device.create_event();
  device.end_operator();
  const int64_t begin_ns = monotonic_ns();
  for (int i = 0; i < kOperators; ++i) {
    device.upload(Stream::kUpload, memory, host.data(), kBytes);
    device.record(up, Stream::kUpload);
    device.wait(Stream::kCompute, up);
    device.end_operator();
  }
  EXPECT_GE(seconds_since(begin_ns), 0.97 * kOperators * (kOperatorS + kStallS));
}

}  // namespace
}  // namespace elixir::times
