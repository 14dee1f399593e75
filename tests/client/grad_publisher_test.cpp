// GradPublisher against a real elixird: what is told to it, in which order, while copies are late.

#include "client/exchange/grad_publisher.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <thread>

#include "tests/client/lazy_device.h"
#include "tests/client/verdict.h"
#include "tests/client/with_elixird.h"

namespace elixir::test {
namespace {

// No event is done while it is held.
class HeldDevice final : public LazyDevice {
 public:
  bool done(DeviceEvent event) override { return !held_ && LazyDevice::done(event); }
  void synchronize(DeviceEvent event) override {
    {
      std::unique_lock lock(held_mutex_);
      released_.wait(lock, [this] { return !held_; });
    }
    LazyDevice::synchronize(event);
  }
  void hold() { held_ = true; }
  void release() {
    const std::lock_guard lock(held_mutex_);
    held_ = false;
    released_.notify_all();
  }
  bool held() const { return held_; }

 private:
  std::mutex held_mutex_;
  std::condition_variable released_;
  std::atomic<bool> held_{false};
};

constexpr uint64_t kChunkNumel = 1280;

Result<std::unique_ptr<Session>> attach_with_immediate_updates() {
  SessionOptions options;
  options.job = "grad-publisher";
  options.start_daemon = false;
  options.rules.immediate = 1;
  options.request_timeout_s = options.ranks_timeout_s = kPatienceS;
  return Session::attach(
      {.type = ComputeType::kFp32, .n_chunks = 1, .n_parameters = 1, .chunk_numel = kChunkNumel},
      {{"p", 0, 0, kChunkNumel}}, options);
}

class GradPublisherTest : public WithElixird {};

// With immediate updates a chunk's weights may be there, and the next step's gradient published,
// before the copies that a post is behind are done. The next post has to wait for that one, whose
// record it would take else: without that elixird is told of step 2 twice.
TEST_F(GradPublisherTest, APostWaitsForTheOneBeforeBehindTheNextStepsGradients) {
  HeldDevice device;
  auto session = attach_with_immediate_updates();
  ASSERT_TRUE(session.ok()) << session.status().message();
  const std::vector<float> values(kChunkNumel, 1.0f);
  ASSERT_TRUE((*session)->load_chunk(0, values.data()).ok());
  ASSERT_TRUE((*session)->await_loaded().ok());
  std::vector<uint32_t> posted;
  const auto note = [&posted](shm::StepRecord& record) { posted.push_back(record.step); };
  {
    GradPublisher publisher(device, **session, {});
    (*session)->open_step(verdict_on(1));
    publisher.publish(0, 1, 1, false);
    ASSERT_TRUE((*session)->wait_param(0, 1).ok());

    device.hold();
    publisher.post(verdict_on(1), note);
    (*session)->open_step(verdict_on(2));
    publisher.publish(0, 2, 1, false);
    std::thread releases([&device, waiter = ::gettid()] {
      EXPECT_TRUE(eventually([waiter] { return asleep(waiter); }));
      device.release();
    });
    publisher.post(verdict_on(2), note);
    EXPECT_FALSE(device.held()) << "the second post did not wait";
    releases.join();
    publisher.drain();
  }
  EXPECT_EQ(posted, (std::vector<uint32_t>{1, 2}));
  const Status finished = (*session)->wait_finished(2);
  EXPECT_TRUE(finished.ok()) << finished.message();
  EXPECT_EQ((*session)->last_finished().step, 2u);
}

}  // namespace
}  // namespace elixir::test
