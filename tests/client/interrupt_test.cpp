// A program ends its waits (base/interrupt.h). Ranks are threads with a session each.

#include "base/interrupt.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "client/session/session.h"
#include "tests/client/verdict.h"
#include "tests/client/with_elixird.h"
#include "tests/support/outcomes.h"
#include "tests/support/patience.h"
#include "tests/support/run_threads.h"

namespace elixir::test {
namespace {

constexpr uint64_t kChunkNumel = 1280;
const std::vector<shm::ParameterPlace> kPlaces = {{"p", 0, 0, kChunkNumel}};

struct Interrupt {};  // what the check throws

SessionOptions options_of(const std::string& job, uint32_t rank) {
  SessionOptions options;
  options.job = job;
  options.rank = options.local_rank = rank;
  options.local_ranks = 2;
  options.start_daemon = false;
  options.request_timeout_s = options.ranks_timeout_s = kPatienceS;
  return options;
}

Result<std::unique_ptr<Session>> attach(const std::string& job, uint32_t rank) {
  const shm::Shape shape{.type = ComputeType::kFp32,
                         .ranks = 2,
                         .n_chunks = 1,
                         .n_parameters = 1,
                         .chunk_numel = kChunkNumel};
  return Session::attach(shape, kPlaces, options_of(job, rank));
}

std::vector<std::unique_ptr<Session>> begin_two(const std::string& job) {
  std::vector<std::unique_ptr<Session>> sessions(2);
  run_threads(2, [&](uint32_t rank) {
    auto session = attach(job, rank);
    ASSERT_TRUE(session.ok()) << session.status().message();
    const std::vector<float> values(kChunkNumel, 1.0f);
    if (rank == 0) {
      ASSERT_TRUE((*session)->load_chunk(0, values.data()).ok());
    }
    ASSERT_TRUE((*session)->await_loaded().ok());
    sessions[rank] = std::move(*session);
  });
  return sessions;
}

Status post(Session& session, uint32_t step) {
  session.say_gradient(step, 0, 0);
  ELIXIR_RETURN_IF_ERROR(session.publish_grad(0, {.step = step, .micro_step = 1}));
  return session.post_step(verdict_on(step));
}

// While it lives, waits of this thread are interrupted.
class Interrupted {
 public:
  Interrupted() {
    set_interrupt([own = std::this_thread::get_id()] {
      if (std::this_thread::get_id() == own) throw Interrupt{};
    });
  }
  ~Interrupted() { set_interrupt({}); }
};

class Interrupts : public WithElixird {};

TEST_F(Interrupts, AWaitForAMissingRankIsLeftAndMadeAgain) {
  const auto sessions = begin_two("again");
  ASSERT_TRUE(sessions[0] != nullptr && sessions[1] != nullptr);
  ASSERT_TRUE(post(*sessions[0], 1).ok());
  EXPECT_FALSE(sessions[0]->interrupted());
  {
    const Interrupted interrupted;
    EXPECT_THROW((void)sessions[0]->wait_committed(1), Interrupt);
    EXPECT_THROW((void)sessions[0]->wait_finished(1), Interrupt);
    EXPECT_THROW((void)sessions[0]->wait_param(0, 1), Interrupt);
  }
  EXPECT_TRUE(sessions[0]->interrupted());
  EXPECT_TRUE(sessions[0]->status().ok());
  ASSERT_TRUE(post(*sessions[1], 1).ok());
  EXPECT_TRUE(sessions[0]->wait_committed(1).ok());
  EXPECT_TRUE(sessions[0]->wait_finished(1).ok());
  EXPECT_FALSE(sessions[0]->interrupted());
}

TEST_F(Interrupts, ACallThatCannotBeMadeAgainEndsTheSession) {
  const auto sessions = begin_two("ends");
  ASSERT_TRUE(sessions[0] != nullptr && sessions[1] != nullptr);
  {
    const Interrupted interrupted;
    EXPECT_THROW((void)sessions[0]->await_loaded("set_parameter()"), Interrupt);
  }
  expect_refused(sessions[0]->status(), Code::kUnavailable, {"set_parameter() was interrupted"});
  expect_refused(sessions[0]->await_loaded(), Code::kUnavailable, {"was interrupted"});
}

TEST_F(Interrupts, TheStartIsLeftWhereARankIsMissing) {
  const Interrupted interrupted;
  EXPECT_THROW((void)attach("start", 0), Interrupt);
}

TEST_F(Interrupts, AnInterruptedRankThatEndsIsADeathForOthers) {
  auto sessions = begin_two("death");
  ASSERT_TRUE(sessions[0] != nullptr && sessions[1] != nullptr);
  ASSERT_TRUE(post(*sessions[0], 1).ok());
  {
    const Interrupted interrupted;
    EXPECT_THROW((void)sessions[0]->wait_committed(1), Interrupt);
  }
  sessions[0].reset();
  // This rank has not posted step 1, so only the death can end the wait.
  expect_refused(sessions[1]->wait_committed(1).status(), Code::kPeerLost, {"rank 0"});
  expect_refused(sessions[1]->await_loaded(), Code::kPeerLost, {"rank 0"});
}

TEST(InterruptChecks, ComeAtMostTenTimesASecondAndOnlyInWaits) {
  std::atomic<uint32_t> calls = 0;
  set_interrupt([&] { ++calls; });
  const int64_t start_ns = monotonic_ns();
  while (calls < 3) check_interrupt();
  const double seconds = seconds_since(start_ns);
  set_interrupt({});
  EXPECT_GE(seconds, 0.2 * 0.99);
}

TEST(InterruptChecks, AWaitForAConditionIsLeftWithoutItsLock) {
  Mutex mutex;
  CondVar never;
  bool was_free = false;
  set_interrupt([&] {
    std::thread other([&] {
      const MutexLock lock(mutex);
      was_free = true;
    });
    other.join();
    throw Interrupt{};
  });
  const uint64_t before = interrupts();
  EXPECT_THROW(
      {
        MutexLock lock(mutex);
        for (;;) wait_round(never, lock);
      },
      Interrupt);
  set_interrupt({});
  EXPECT_TRUE(was_free);
  EXPECT_EQ(interrupts(), before + 1);
}

}  // namespace
}  // namespace elixir::test
