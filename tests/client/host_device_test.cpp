// HostDevice behind a link: what is ordered by events and what is not.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

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

// A device whose every copy begins so much later that what does not wait is certain to come first.
class PacedDeviceTest : public ::testing::Test {
 protected:
  PacedDeviceTest() : device_({.link = HostLink{10, 10, 0, 300'000}}) {}

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

  PacedDevice device_;
};

// ---- order ----

TEST_F(PacedDeviceTest, ComputeSeesAnUploadItWaitedFor) {
  std::byte* const memory = block();
  const Bytes host = filled(7);
  upload(memory, host);
  const DeviceEvent up = after(Stream::kUpload);
  EXPECT_FALSE(device_.done(up));
  EXPECT_EQ(read(memory), filled(0));  // negative control: without a wait
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
  EXPECT_EQ(back, filled(0));
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
  device_.synchronize(after(Stream::kDownload));
  EXPECT_EQ(back, filled(2));
}

TEST_F(PacedDeviceTest, AStreamWaitsForTheOther) {
  device_.keep_spans();
  std::byte *const memory = block(), *const other = block();
  Bytes early = filled(9), late = filled(9);
  const Bytes first = filled(1), second = filled(2);
  upload(memory, first);
  upload(memory, second);
  const DeviceEvent up = after(Stream::kUpload);
  download(early, other);  // beside the first upload: negative control
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
  EXPECT_LT(downs[0].begin_ns, ups[0].end_ns);
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
  device_.synchronize(down);            // would not return if the download waited for this record
  EXPECT_EQ(back, first);
  EXPECT_FALSE(device_.done(up));
  device_.synchronize(up);
  EXPECT_EQ(read(memory), second);
}

TEST_F(PacedDeviceTest, ACollectiveBeginsWhenWhatItsStreamWaitedForIsDone) {
  std::byte* const memory = block();
  const Bytes host = filled(3);
  upload(memory, host);
  const DeviceEvent up = after(Stream::kUpload);
  device_.wait(Stream::kGather, up);
  EXPECT_FALSE(device_.done(up)) << "the caller waited";
  const DeviceEvent before = after(Stream::kGather);
  EXPECT_FALSE(device_.done(before)) << "an event of a stream that waits";
  device_.begin_collective(Stream::kReduce);
  EXPECT_FALSE(device_.done(up)) << "another stream waited";
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
  EXPECT_FALSE(device_.done(end));
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
    test::expect_thrown(Code::kInvalidArgument, {"must be greater than 0"},
                        [&] { const PacedDevice device({.link = link}); });
  }
  EXPECT_THROW(PacedDevice({.operator_us = -1}), Error);
}

TEST(HostDevice, HoldsToItsMemoryLimit) {
  HostDevice device(2 * kBytes);
  device.allocate(kBytes, "a block", "less");
  test::expect_thrown(Code::kResourceExhausted,
                      {"another block needs 8.00 KiB", "use fewer blocks"},
                      [&] { device.allocate(2 * kBytes, "another block", "use fewer blocks"); });
}

}  // namespace
}  // namespace elixir
