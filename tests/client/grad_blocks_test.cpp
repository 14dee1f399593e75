// Gradients of a chunk come together on the device, in two blocks: what each holds, and in how many
// copies it goes down.

#include "client/exchange/grad_blocks.h"

#include <algorithm>
#include <vector>

#include "tests/client/lazy_device.h"
#include "tests/support/matchers.h"

namespace elixir::test {
namespace {

constexpr size_t kBytes = 1024;
using Bytes = std::vector<std::byte>;

class Blocks : public ::testing::Test {
 protected:
  // What kCompute puts into the round.
  void fill(PendingGrads& round, int value, size_t from, size_t bytes) {
    const Bytes values(bytes, static_cast<std::byte>(value));
    device_.copy(Stream::kCompute, blocks_.hold(round) + from, values.data(), bytes);
  }
  void expect_in_order() { EXPECT_EQ(device_.violation(), ""); }
  void finish(Stream stream) {
    device_.record(end_, stream);
    device_.synchronize(end_);
  }

  LazyDevice device_;
  GradBlocks blocks_{device_, kBytes, 2};
  DeviceEvent end_ = device_.create_event();
};

TEST_F(Blocks, WhatWasNeverGivenIsZero) {
  Bytes slot(kBytes, std::byte{9});
  for (int time = 0; time < 4; ++time) {  // both blocks have held something
    PendingGrads round{.aside = slot.data()};
    fill(round, 1 + time, 100, 50);
    blocks_.put_aside(round);
    finish(Stream::kDownload);
    Bytes right(kBytes, std::byte{0});
    std::fill_n(right.begin() + 100, 50, static_cast<std::byte>(1 + time));
    EXPECT_EQ(slot, right);
  }
  expect_in_order();
}

TEST_F(Blocks, AnEmptyRoundGoesDownAsZeros) {
  Bytes slot(kBytes, std::byte{9});
  PendingGrads round{.aside = slot.data()};
  blocks_.put_aside(round);
  finish(Stream::kDownload);
  EXPECT_EQ(slot, Bytes(kBytes, std::byte{0}));
}

TEST_F(Blocks, RoundsThatFillInTurnGoAsideAndComeBack) {
  constexpr int kRounds = 5;
  const uint64_t device_bytes = device_.allocated_bytes();
  std::vector<PendingGrads> rounds(kRounds);
  for (int part = 0; part < 8; ++part) {
    for (int i = 0; i < kRounds; ++i) fill(rounds[i], 10 * i + part, 128 * part, 128);
  }
  for (int i = 0; i < kRounds; ++i) {
    std::byte* const memory = blocks_.hold(rounds[i]);
    Bytes right(kBytes);
    for (int part = 0; part < 8; ++part) {
      std::fill_n(right.begin() + 128 * part, 128, static_cast<std::byte>(10 * i + part));
    }
    EXPECT_EQ(Bytes(memory, memory + kBytes), right) << i;
    blocks_.end(rounds[i], Stream::kCompute);
  }
  EXPECT_EQ(device_.allocated_bytes(), device_bytes);
  expect_in_order();
}

TEST_F(Blocks, ARoundThatIsAsideAlreadyGoesDownOnce) {
  Bytes slot(kBytes);
  PendingGrads first{.aside = slot.data()}, second, third;
  fill(first, 1, 0, 8);
  fill(second, 2, 0, 8);
  fill(third, 3, 0, 8);  // takes the first one's block
  EXPECT_EQ(device_.downloads(), 1u);
  blocks_.put_aside(first);
  EXPECT_EQ(device_.downloads(), 1u);
  finish(Stream::kDownload);
  EXPECT_EQ(slot[0], std::byte{1});
}

TEST_F(Blocks, ADroppedRoundLeavesNothingToTheNext) {
  Bytes slot(kBytes);
  PendingGrads round{.aside = slot.data()};
  fill(round, 1, 0, kBytes);
  blocks_.put_aside(round);
  fill(round, 1, 0, 8);  // is back
  blocks_.drop(round);
  fill(round, 2, 8, 8);
  blocks_.put_aside(round);
  finish(Stream::kDownload);
  Bytes right(kBytes);
  std::fill_n(right.begin() + 8, 8, std::byte{2});
  EXPECT_EQ(slot, right);
  expect_in_order();
}

}  // namespace
}  // namespace elixir::test
