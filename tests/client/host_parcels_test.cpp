// Parcels that go to host memory and come back, on a device whose copies happen as late as they
// may. Other threads end parcels meanwhile.

#include "client/device/host_parcels.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "base/region_plan.h"
#include "base/throw_error.h"
#include "tests/client/lazy_device.h"
#include "tests/support/matchers.h"
#include "tests/support/thrown.h"

namespace elixir::test {
namespace {

// Ordinary memory, whose content is known: `value` in every byte.
class Bytes final : public ParcelMemory {
 public:
  Bytes(size_t bytes, int value, std::atomic<int>* there, int* failures = nullptr)
      : lengths_{bytes, 3}, there_(there) {
    make();
    failures_ = failures;
    for (std::vector<std::byte>& part : parts_) std::memset(part.data(), value, part.size());
  }
  ~Bytes() override { drop(); }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;

  void make() override {
    if (failures_ != nullptr && *failures_ > 0) {
      --*failures_;
      throw std::bad_alloc();
    }
    drop();
    for (const size_t bytes : lengths_) parts_.emplace_back(bytes);
    ++*there_;
  }
  void drop() override {
    if (!parts_.empty()) --*there_;
    parts_.clear();
  }
  std::vector<DevicePart> parts() const override {
    std::vector<DevicePart> found;
    for (const std::vector<std::byte>& part : parts_) {
      found.push_back({const_cast<std::byte*>(part.data()), part.size()});
    }
    return found;
  }
  bool all_are(int value) const {
    for (const std::vector<std::byte>& part : parts_) {
      for (const std::byte byte : part) {
        if (byte != static_cast<std::byte>(value)) return false;
      }
    }
    return parts_.size() == lengths_.size();
  }

 private:
  const std::vector<size_t> lengths_;
  std::vector<std::vector<std::byte>> parts_;
  std::atomic<int>* const there_;  // counts memories on the device
  int* failures_ = nullptr;        // so many calls of make() fail
};

class HostParcelsTest : public ::testing::Test {
 protected:
  struct Sent {
    std::shared_ptr<HostParcels::Parcel> parcel;
    const Bytes* memory = nullptr;  // the parcel's
  };

  Sent put(int value, size_t bytes = 1000) {
    auto memory = std::make_unique<Bytes>(bytes, value, &there_, &failures_);
    const Bytes* const own = memory.get();
    return {parcels_->put(std::move(memory)), own};
  }
  void expect_taken(const Sent& sent, int value) {
    sent.parcel->take();
    EXPECT_TRUE(sent.memory->all_are(value)) << value;
  }

  LazyDevice device_;
  std::atomic<int> there_ = 0;
  int failures_ = 0;
  const std::shared_ptr<HostParcels> parcels_ =
      std::make_shared<HostParcels>(device_, uint64_t{64} << 20);
};

TEST_F(HostParcelsTest, ComeBackInTheReverseOrder) {
  for (int pass = 0; pass < 3; ++pass) {
    std::vector<Sent> sent;
    for (int i = 0; i < 8; ++i) {
      sent.push_back(put(i, 500 + 700 * static_cast<size_t>(i)));
      EXPECT_EQ(there_, 1);
    }
    for (int i = 8; i-- > 0;) {
      expect_taken(sent.back(), i);
      sent.pop_back();
    }
  }
  EXPECT_EQ(device_.violation(), "");
  EXPECT_GT(device_.most_pending(), 1U);
}

TEST_F(HostParcelsTest, TheLastOfAPassMayStayAway) {
  std::vector<Sent> sent;
  for (int i = 0; i < 3; ++i) sent.push_back(put(i));
  parcels_->settle();
  EXPECT_EQ(there_, 0);
  parcels_->bring_next();
  EXPECT_EQ(there_, 1);
  expect_taken(sent[2], 2);
  expect_taken(sent[0], 0);  // the second one was on its way, and goes back
  expect_taken(sent[1], 1);
  expect_taken(sent[2], 2);
  EXPECT_EQ(device_.violation(), "");
}

// As backward's threads do it, and those of a program that drops its graphs.
TEST_F(HostParcelsTest, OtherThreadsMayEndThem) {
  for (int pass = 0; pass < 30; ++pass) {
    std::vector<Sent> sent;
    for (int i = 0; i < 6; ++i) sent.push_back(put(i));
    std::vector<Sent> dropped(sent.begin(), sent.begin() + 3);
    sent.erase(sent.begin(), sent.begin() + 3);
    std::thread other([parcels = parcels_, dropped = std::move(dropped)]() mutable {
      while (!dropped.empty()) {
        dropped.erase(dropped.begin());
        (void)parcels->traffic();
      }
    });
    for (size_t i = 3; i-- > 0;) expect_taken(sent[i], static_cast<int>(i) + 3);
    other.join();
  }
  EXPECT_EQ(device_.violation(), "");
}

TEST_F(HostParcelsTest, HostMemoryGrowsOnceAndHasALimit) {
  std::vector<Sent> sent;
  for (int i = 0; i < 5; ++i) sent.push_back(put(i));
  const uint64_t held_bytes = parcels_->traffic().host_bytes;
  EXPECT_EQ(held_bytes % kActivationSlabBytes, 0U);
  for (int pass = 0; pass < 10; ++pass) {
    sent.clear();
    for (int i = 0; i < 5; ++i) sent.push_back(put(i));
  }
  EXPECT_EQ(parcels_->traffic().host_bytes, held_bytes);
  const HostParcels::Traffic before = parcels_->traffic();
  EXPECT_EQ(put(9, size_t{100} << 20).parcel, nullptr);
  EXPECT_EQ(parcels_->traffic().down_bytes, before.down_bytes);
  expect_taken(put(7), 7);
}

// One that comes ahead may find no memory. It is asked for again once it is needed.
TEST_F(HostParcelsTest, WithoutMemoryAheadTheyComeLater) {
  std::vector<Sent> sent;
  for (int i = 0; i < 3; ++i) sent.push_back(put(i));
  failures_ = 1;
  expect_taken(sent[2], 2);
  EXPECT_EQ(failures_, 0);
  expect_taken(sent[1], 1);
  failures_ = 2;  // the first one is on its way
  expect_taken(sent[0], 0);
  parcels_->settle();
  failures_ = 1;
  EXPECT_THROW(sent[1].parcel->take(), std::bad_alloc);
  expect_taken(sent[1], 1);
}

// As CUDA's do after an error of a kernel.
class FailingDevice final : public LazyDevice {
 public:
  void wait(Stream stream, DeviceEvent event) override {
    if (fails) throw Error(error(Code::kInternal, "a kernel has failed"));
    LazyDevice::wait(stream, event);
  }
  bool fails = false;
};

TEST_F(HostParcelsTest, EndBehindAnErrorOfTheDevice) {
  FailingDevice device;
  const auto parcels = std::make_shared<HostParcels>(device, uint64_t{64} << 20);
  auto first = parcels->put(std::make_unique<Bytes>(100, 1, &there_));
  auto second = parcels->put(std::make_unique<Bytes>(100, 2, &there_));
  device.fails = true;
  second.reset();
  expect_thrown(Code::kInternal, {"a kernel"}, [&] { first->take(); });
  parcels->close();
  EXPECT_EQ(parcels->put(std::make_unique<Bytes>(100, 3, &there_)), nullptr);
}

TEST_F(HostParcelsTest, EndWithTheDevice) {
  std::vector<Sent> sent;
  for (int i = 0; i < 2; ++i) sent.push_back(put(i));
  parcels_->close();
  EXPECT_EQ(there_, 0);
  for (const Sent& each : sent) {
    expect_thrown(Code::kInvalidArgument, {"has ended"}, [&] { each.parcel->take(); });
  }
  EXPECT_EQ(put(3).parcel, nullptr);
}

}  // namespace
}  // namespace elixir::test
