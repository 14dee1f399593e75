// The copy streams of a HostDevice, from several threads: sanitizer builds included.

#include "client/device/paced_link.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <iterator>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "client/device/paced_device.h"
#include "client/device/pinned_ranges.h"

namespace elixir {
namespace {

constexpr size_t kBytes = 64 << 10;
using Bytes = std::vector<std::byte>;

Bytes filled(int value) { return Bytes(kBytes, static_cast<std::byte>(value)); }

// Up and down again, `rounds` times, each direction waiting for the other, with one block.
int wrong_round_trips(PacedLink& link, int rounds) {
  Bytes block = filled(0);
  std::vector<Bytes> host, back;
  for (int round = 0; round < rounds; ++round) {
    host.push_back(filled(1 + round % 250));
    back.push_back(filled(0));
  }
  for (size_t i = 0; i < host.size(); ++i) {
    link.transfer(Stream::kUpload, block.data(), host[i].data(), kBytes);
    link.wait(Stream::kDownload, link.end(Stream::kUpload));
    link.transfer(Stream::kDownload, back[i].data(), block.data(), kBytes);
    link.wait(Stream::kUpload, link.end(Stream::kDownload));
  }
  link.synchronize(link.end(Stream::kDownload));
  int wrong = 0;
  for (size_t i = 0; i < host.size(); ++i) wrong += host[i] != back[i];
  return wrong;
}

TEST(PacedLink, EachDirectionWaitsForTheOther) {
  CopyLog log;
  PacedLink link({.h2d_gb_s = 20, .d2h_gb_s = 10, .joint_gb_s = 15, .latency_us = 5}, log);
  EXPECT_EQ(wrong_round_trips(link, 100), 0);
}

TEST(PacedLink, SeveralThreadsUseItAtOnce) {
  CopyLog log;
  log.keep_spans();
  constexpr int kThreads = 3;
  std::atomic<int> wrong = 0, in_use = kThreads;
  uint64_t bytes = 0;
  {
    PacedLink link({.h2d_gb_s = 20, .d2h_gb_s = 20, .joint_gb_s = 30}, log);
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&] {
        wrong += wrong_round_trips(link, 50);
        --in_use;
      });
    }
    while (in_use > 0) {
      for (const StreamSpan& span : log.take_spans()) bytes += span.bytes;
      std::this_thread::yield();
    }
    for (std::thread& thread : threads) thread.join();
  }
  for (const StreamSpan& span : log.take_spans()) bytes += span.bytes;
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(bytes, uint64_t{kThreads} * 50 * 2 * kBytes);
  EXPECT_GT(log.link_times().h2d_busy_ns, 0u);
  EXPECT_GT(log.link_times().d2h_busy_ns, 0u);
}

TEST(PacedLink, EndsBehindWhatIsEnqueued) {
  CopyLog log;
  const Bytes host = filled(7);
  Bytes block = filled(0), back = filled(1);
  {
    constexpr double kLatencyS = 0.5;
    PacedLink link({.h2d_gb_s = 10, .d2h_gb_s = 10, .latency_us = kLatencyS * 1e6}, log);
    const int64_t begin_ns = monotonic_ns();
    link.transfer(Stream::kUpload, block.data(), host.data(), kBytes);
    const bool done = link.done(link.end(Stream::kUpload));
    EXPECT_FALSE(done && seconds_since(begin_ns) < kLatencyS);
    link.wait(Stream::kDownload, link.end(Stream::kUpload));
    link.copy(Stream::kDownload, back.data(), block.data(), kBytes / 2);
    link.zero(Stream::kDownload, back.data() + kBytes / 2, kBytes / 2);
  }
  EXPECT_EQ(block, host);
  EXPECT_EQ(back.front(), std::byte{7});
  EXPECT_EQ(back[kBytes / 2 - 1], std::byte{7});
  EXPECT_EQ(back[kBytes / 2], std::byte{0});
  EXPECT_EQ(back.back(), std::byte{0});
}

// Not even where all streams are waited for.
TEST(PacedDevice, HasNoThreadsOfSwingStreamsThatNobodyUses) {
  const auto threads = [] {
    using std::filesystem::directory_iterator;
    return std::distance(directory_iterator("/proc/self/task"), directory_iterator());
  };
  PacedDevice device({.link = HostLink{.h2d_gb_s = 1, .d2h_gb_s = 1}});
  const auto before = threads();
  { const PinnedRanges none(device, {}, 1); }
  EXPECT_LE(threads(), before);  // less where one of the test before had not quite ended
}

}  // namespace
}  // namespace elixir
