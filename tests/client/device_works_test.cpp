#include "client/collectives/device_works.h"

#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "tests/client/broken_device.h"
#include "tests/support/matchers.h"

namespace elixir {
namespace {

// A collective that ends when it is told to.
struct HeldWork final : c10d::Work {
  void end() { finish(); }
  void fail(const std::string& why) { finish(std::make_exception_ptr(std::runtime_error(why))); }
};

class DeviceWorksTest : public ::testing::Test {
 protected:
  c10::intrusive_ptr<HeldWork> add(DeviceWorks& works, const char* what) {
    auto work = c10::make_intrusive<HeldWork>();
    works.add(what, work);
    return work;
  }

  DeviceWorks works_{c10::Device(c10::DeviceType::CPU), 60};
};

TEST_F(DeviceWorksTest, WithoutAnyAllAreDone) {
  EXPECT_TRUE(works_.all_done());
  EXPECT_TRUE(works_.ask().ok());
}

TEST_F(DeviceWorksTest, AreDoneOnceAskedForInTheirOrder) {
  const auto first = add(works_, "a gather"), second = add(works_, "a sum");
  EXPECT_TRUE(works_.ask().ok());
  EXPECT_FALSE(works_.all_done());
  second->end();  // the older one is still under way
  EXPECT_TRUE(works_.ask().ok());
  EXPECT_FALSE(works_.all_done());
  first->end();
  EXPECT_FALSE(works_.all_done()) << "nobody has asked";
  EXPECT_TRUE(works_.ask().ok());
  EXPECT_TRUE(works_.all_done());
}

TEST_F(DeviceWorksTest, TellHowFarTheyAre) {
  EXPECT_EQ(works_.progress().made, 0u);
  EXPECT_EQ(works_.progress().oldest, 0u);
  const auto first = c10::make_intrusive<HeldWork>(), second = c10::make_intrusive<HeldWork>();
  works_.add("a gather", first, {CollectiveKind::kAllGather, 8, 3});
  works_.add("a sum", second, {CollectiveKind::kReduceScatter, 8, 4});
  EXPECT_EQ(works_.progress().made, 2u);
  EXPECT_EQ(works_.progress().oldest, 1u);
  EXPECT_EQ(works_.progress().of_oldest.chunk, 3u);
  first->end();
  EXPECT_TRUE(works_.ask().ok());
  EXPECT_EQ(works_.progress().oldest, 2u);
  EXPECT_EQ(works_.progress().of_oldest.kind, CollectiveKind::kReduceScatter);
  second->end();
  EXPECT_TRUE(works_.ask().ok());
  EXPECT_EQ(works_.progress().made, 2u);
  EXPECT_EQ(works_.progress().oldest, 0u);
}

TEST_F(DeviceWorksTest, AFailureIsToldWithWhatFailed) {
  const auto first = add(works_, "a gather"), second = add(works_, "a sum");
  first->end();
  second->fail("the cable was cut");
  const Status status = works_.ask();
  expect_refused(status, Code::kInternal, {"a sum failed: ", "the cable was cut"});
  EXPECT_FALSE(works_.all_done());
  EXPECT_FALSE(works_.ask().ok()) << "what has failed stays so";
}

TEST_F(DeviceWorksTest, AnErrorOfAnotherRankIsALostPeer) {
  add(works_, "a sum")->fail("NCCL error: ncclRemoteError: it is gone");
  EXPECT_EQ(works_.ask().code(), Code::kPeerLost);
}

TEST_F(DeviceWorksTest, OneThatDoesNotEndInTimeIsNamed) {
  DeviceWorks works(c10::Device(c10::DeviceType::CPU), 0);
  const auto work = add(works, "a gather");
  expect_refused(works.ask(), Code::kTimedOut, {"a gather has not ended within 0 s"});
  work->end();  // late, and in time for who asks
  EXPECT_TRUE(works.ask().ok());
  EXPECT_TRUE(works.all_done());
}

// Who asks is the thread that watches the peers, which nobody would catch.
TEST(DeviceWorks, OnADeviceThatHasFailedAreAnErrorAndNoException) {
  DeviceWorks works({test::kBrokenDevice, 0}, 60);
  const Status status = works.ask();
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_EQ(status.message(), test::kBrokenDeviceText);
}

}  // namespace
}  // namespace elixir
