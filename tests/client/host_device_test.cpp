// HostDevice behind a link: what is ordered by events and what is not.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

#include "base/clock.h"
#include "base/norm_sum.h"
#include "base/throw_error.h"
#include "client/device/paced_device.h"
#include "tests/support/thrown.h"

namespace elixir {
namespace {

constexpr size_t kBytes = 4096;
using Bytes = std::vector<std::byte>;

Bytes filled(int value, size_t bytes = kBytes) {
  return Bytes(bytes, static_cast<std::byte>(value));
}

// A device whose every copy begins so much later that what does not wait comes first, but where the
// test's thread is held up: early() says whether it was.
class PacedDeviceTest : public ::testing::Test {
 protected:
  PacedDeviceTest() : device_({.link = HostLink{10, 10, 0, kLatencyS * 1e6}}) {}

  bool early() const { return seconds_since(begin_ns_) < kLatencyS; }
  // Before it can be.
  bool done_early(DeviceEvent event) { return device_.done(event) && early(); }
  std::byte* block() { return device_.allocate(kBytes, "a block", "less"); }
  Bytes read(const std::byte* memory) { return Bytes(memory, memory + kBytes); }
  void upload(std::byte* to, const Bytes& from) {
    device_.upload(Stream::kUpload, to, from.data(), from.size());
  }
  void download(Bytes& to, const std::byte* from) {
    device_.download(Stream::kDownload, to.data(), from, to.size());
  }
  // A new event, recorded.
  DeviceEvent after(Stream stream) {
    const DeviceEvent event = device_.create_event();
    device_.record(event, stream);
    return event;
  }

  static constexpr double kLatencyS = 0.3;
  PacedDevice device_;
  const int64_t begin_ns_ = monotonic_ns();
};

// ---- order ----

TEST_F(PacedDeviceTest, ComputeSeesAnUploadItWaitedFor) {
  std::byte* const memory = block();
  const Bytes host = filled(7);
  upload(memory, host);
  const DeviceEvent up = after(Stream::kUpload);
  EXPECT_FALSE(done_early(up));
  EXPECT_TRUE(read(memory) == filled(0) || !early());  // negative control: without a wait
  device_.wait(Stream::kCompute, up);
  EXPECT_TRUE(device_.done(up));
  EXPECT_EQ(read(memory), host);
}

TEST_F(PacedDeviceTest, ADownloadTakesWhatComputeWroteBeforeTheEvent) {
  std::byte* const memory = block();
  Bytes back = filled(0);
  std::fill_n(memory, kBytes, std::byte{1});
  device_.wait(Stream::kDownload, after(Stream::kCompute));
  download(back, memory);
  const DeviceEvent down = after(Stream::kDownload);
  EXPECT_TRUE(back == filled(0) || !early());
  device_.wait(Stream::kCompute, down);  // before the memory is written again
  std::fill_n(memory, kBytes, std::byte{2});
  EXPECT_EQ(back, filled(1));
}

TEST_F(PacedDeviceTest, MemoryWrittenBeforeItsDownloadIsDoneGivesWrongBytes) {
  std::byte* const memory = block();
  Bytes back = filled(0);
  std::fill_n(memory, kBytes, std::byte{1});
  download(back, memory);
  std::fill_n(memory, kBytes, std::byte{2});
  const bool before_it = early();
  device_.synchronize(after(Stream::kDownload));
  EXPECT_TRUE(back == filled(2) || !before_it);
}

TEST_F(PacedDeviceTest, AStreamWaitsForTheOther) {
  device_.keep_spans();
  std::byte *const memory = block(), *const other = block();
  Bytes beside = filled(9), late = filled(9);
  const Bytes first = filled(1), second = filled(2);
  upload(memory, first);
  upload(memory, second);
  const DeviceEvent up = after(Stream::kUpload);
  download(beside, other);  // beside the first upload: negative control
  const bool is_beside = early();
  device_.wait(Stream::kDownload, up);
  download(late, memory);
  device_.synchronize(after(Stream::kDownload));
  EXPECT_EQ(late, second);
  std::vector<StreamSpan> ups, downs;
  for (const StreamSpan& span : device_.take_spans()) {
    (span.stream == Stream::kUpload ? ups : downs).push_back(span);
  }
  ASSERT_EQ(ups.size(), 2u);
  ASSERT_EQ(downs.size(), 2u);
  EXPECT_TRUE(downs[0].begin_ns < ups[0].end_ns || !is_beside);
  EXPECT_GE(downs[1].begin_ns, ups[1].end_ns);
}

TEST_F(PacedDeviceTest, AWaitMeansTheLatestRecordBeforeIt) {
  std::byte* const memory = block();
  const Bytes first = filled(1), second = filled(2);
  Bytes back = filled(0);
  upload(memory, first);
  const DeviceEvent up = after(Stream::kUpload);
  device_.wait(Stream::kDownload, up);
  download(back, memory);
  const DeviceEvent down = after(Stream::kDownload);
  device_.wait(Stream::kUpload, down);
  upload(memory, second);
  device_.record(up, Stream::kUpload);  // while it is pending
  EXPECT_FALSE(done_early(up));
  device_.synchronize(down);  // would not return if the download waited for this record
  EXPECT_EQ(back, first);
  device_.synchronize(up);
  EXPECT_EQ(read(memory), second);
}

TEST_F(PacedDeviceTest, ACollectiveBeginsWhenWhatItsStreamWaitedForIsDone) {
  std::byte* const memory = block();
  const Bytes host = filled(3);
  upload(memory, host);
  const DeviceEvent up = after(Stream::kUpload);
  device_.wait(Stream::kGather, up);
  EXPECT_FALSE(done_early(up)) << "the caller waited";
  const DeviceEvent before = after(Stream::kGather);
  EXPECT_FALSE(done_early(before)) << "an event of a stream that waits";
  device_.begin_collective(Stream::kReduce);
  EXPECT_FALSE(done_early(up)) << "another stream waited";
  device_.begin_collective(Stream::kGather);
  EXPECT_TRUE(device_.done(up));
  EXPECT_TRUE(device_.done(before));
  EXPECT_EQ(read(memory), host);
}

TEST_F(PacedDeviceTest, ZeroAndCopyAreInOrderWithTransfers) {
  std::byte* const first = block();
  std::byte* const second = block();
  const Bytes host = filled(5);
  upload(first, host);
  device_.copy(Stream::kUpload, second, first, kBytes);
  device_.zero(Stream::kUpload, first, kBytes);
  device_.synchronize(after(Stream::kUpload));
  EXPECT_EQ(read(first), filled(0));
  EXPECT_EQ(read(second), host);
}

TEST_F(PacedDeviceTest, ATransferOfAnotherStreamIsInOrderWithIt) {
  std::byte* const memory = block();
  const Bytes host = filled(5);
  Bytes back = filled(0);
  upload(memory, host);
  device_.download(Stream::kUpload, back.data(), memory, kBytes);
  device_.zero(Stream::kUpload, memory, kBytes);
  const DeviceEvent end = after(Stream::kUpload);
  EXPECT_FALSE(done_early(end));
  device_.synchronize(end);
  EXPECT_EQ(back, host);
  EXPECT_EQ(read(memory), filled(0));
  device_.upload(Stream::kCompute, memory, host.data(), kBytes);  // kCompute is the caller
  EXPECT_EQ(read(memory), host);
}

TEST_F(PacedDeviceTest, AnEventNeverRecordedIsDone) {
  const DeviceEvent event = device_.create_event();
  const Bytes host = filled(1);
  upload(block(), host);
  EXPECT_TRUE(device_.done(event));
  device_.wait(Stream::kDownload, event);
  device_.synchronize(event);
  device_.synchronize(after(Stream::kUpload));  // the source ends here
}

TEST(HostDevice, EndsWhenItsCopiesAreDone) {
  const Bytes host = filled(8);
  Bytes back = filled(0);
  {
    PacedDevice device({.link = HostLink{10, 10, 0, 20'000}});
    std::byte* const memory = device.allocate(kBytes, "a block", "less");
    const DeviceEvent up = device.create_event();
    device.upload(Stream::kUpload, memory, host.data(), kBytes);
    device.record(up, Stream::kUpload);
    device.wait(Stream::kDownload, up);
    device.download(Stream::kDownload, back.data(), memory, kBytes);
  }
  EXPECT_EQ(back, host);
}

// As gradients are published: one thread enqueues and another waits for what it is told of.
TEST(HostDevice, AnotherThreadMayWait) {
  constexpr int kRounds = 2000, kBlocks = 8;
  PacedDevice device({.link = HostLink{50, 50, 60, 0}});
  std::byte* const memory = device.allocate(kBlocks * kBytes, "blocks", "less");
  std::vector<Bytes> host(kBlocks, filled(0)), back(kBlocks, filled(0));
  std::vector<DeviceEvent> up, down;
  for (int i = 0; i < kBlocks; ++i) {
    up.push_back(device.create_event());
    down.push_back(device.create_event());
  }
  std::atomic<int> told = 0, seen = 0, wrong = 0;
  std::thread publisher([&] {
    for (int round = 0; round < kRounds; ++round) {
      told.wait(round);
      const auto i = static_cast<size_t>(round % kBlocks);
      while (round % 3 == 0 && !device.done(down[i])) std::this_thread::yield();
      device.synchronize(down[i]);
      if (back[i] != filled(round % 251)) ++wrong;
      seen = round + 1;
      seen.notify_one();
    }
  });
  for (int round = 0; round < kRounds; ++round) {
    const auto i = static_cast<size_t>(round % kBlocks);
    for (int free = seen; free <= round - kBlocks; free = seen) seen.wait(free);
    host[i] = filled(round % 251);
    device.upload(Stream::kUpload, memory + i * kBytes, host[i].data(), kBytes);
    device.record(up[i], Stream::kUpload);
    device.wait(Stream::kDownload, up[i]);
    device.download(Stream::kDownload, back[i].data(), memory + i * kBytes, kBytes);
    device.record(down[i], Stream::kDownload);
    told = round + 1;
    told.notify_one();
  }
  publisher.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(device.h2d_bytes(), kRounds * kBytes);
  EXPECT_EQ(device.d2h_bytes(), kRounds * kBytes);
}

// ---- what it says of copies ----

TEST(HostDevice, CollectivesAreKeptFromTheirBeginToTheRecord) {
  HostDevice device;
  const DeviceEvent event = device.create_event();
  const auto collective = [&](Stream stream) {
    device.begin_collective(stream);
    device.record(event, stream);
  };
  collective(Stream::kGather);
  device.keep_spans();
  collective(Stream::kReduce);
  device.record(event, Stream::kReduce);
  const std::vector<StreamSpan> spans = device.take_spans();
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].stream, Stream::kReduce);
  EXPECT_EQ(spans[0].bytes, 0u);
  EXPECT_LE(spans[0].begin_ns, spans[0].end_ns);
  EXPECT_TRUE(device.take_spans().empty());
  EXPECT_EQ(device.link_times().h2d_busy_ns + device.link_times().d2h_busy_ns, 0u);
}

TEST(HostDevice, WithoutALinkWorkIsDoneWhenACallReturns) {
  constexpr size_t kMost = size_t{8} << 20;
  HostDevice device;
  device.keep_spans();
  std::byte* const memory = device.allocate(kMost, "a block", "less");
  const Bytes host = filled(4, kMost);
  Bytes back = filled(0, kMost);
  const DeviceEvent event = device.create_event();
  const int64_t begin_ns = monotonic_ns();
  device.upload(Stream::kUpload, memory, host.data(), kMost);
  device.record(event, Stream::kUpload);
  EXPECT_TRUE(device.done(event));
  device.download(Stream::kDownload, back.data(), memory, kMost);
  const int64_t took_ns = monotonic_ns() - begin_ns;
  EXPECT_EQ(back, host);
  const LinkTimes times = device.link_times();
  EXPECT_GT(times.h2d_busy_ns, 0u);
  EXPECT_GT(times.d2h_busy_ns, 0u);
  EXPECT_GE(took_ns, static_cast<int64_t>(times.h2d_busy_ns + times.d2h_busy_ns));
  const std::vector<StreamSpan> spans = device.take_spans();
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].bytes, kMost);
  for (const StreamSpan& span : spans) EXPECT_LE(span.begin_ns, span.end_ns);
}

// ---- at the start ----

TEST(HostDevice, TheSquaredNormReplacesWhatTheResultHeld) {
  HostDevice device;
  std::vector<float> values(1000, 2.0f);
  values[77] = INFINITY;
  NormSum result;
  std::fill_n(reinterpret_cast<std::byte*>(&result), sizeof result, std::byte{0xff});
  device.squared_norm(Stream::kCompute, ComputeType::kFp32,
                      reinterpret_cast<const std::byte*>(values.data()), values.size(),
                      reinterpret_cast<std::byte*>(&result));
  EXPECT_EQ(to_double(result), 4.0 * 999);
  EXPECT_EQ(result.nonfinite, 1u);
}

TEST(HostDevice, RefusesLinksThatAreNone) {
  const HostLink links[] = {{0, 1}, {1, -1}, {1, NAN}, {1, 1, -1}, {1, 1, 0, -1}};
  for (const HostLink& link : links) {
    SCOPED_TRACE(fmt::format("{} {}", link.h2d_gb_s, link.d2h_gb_s));
    expect_thrown(Code::kInvalidArgument, {"must be greater than 0"},
                  [&] { const PacedDevice device({.link = link}); });
  }
  EXPECT_THROW(PacedDevice({.operator_us = -1}), Error);
}

TEST(HostDevice, HoldsToItsMemoryLimit) {
  HostDevice device(2 * kBytes);
  device.allocate(kBytes, "a block", "less");
  expect_thrown(Code::kResourceExhausted, {"another block needs 8.00 KiB", "use fewer blocks"},
                [&] { device.allocate(2 * kBytes, "another block", "use fewer blocks"); });
}

}  // namespace
}  // namespace elixir
