// Sessions against a real elixird, without torch: ranks are threads with a session each.

#include "client/session/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <span>
#include <thread>
#include <tuple>

#include "base/clock.h"
#include "optim_cpu/adam.h"
#include "optim_cpu/master.h"
#include "shm/attach_socket.h"
#include "shm/messages.h"
#include "tests/client/verdict.h"
#include "tests/daemon/daemon_process.h"
#include "tests/support/outcomes.h"
#include "tests/support/patience.h"
#include "tests/support/run_threads.h"
#include "tests/support/temporary_folder.h"

namespace elixir::test {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kChunkNumel = 1280;
constexpr uint32_t kChunks = 5;

shm::Shape shape_for(uint32_t ranks) {
  return {.type = ComputeType::kFp32,
          .ranks = ranks,
          .n_chunks = kChunks,
          .n_parameters = kChunks,
          .chunk_numel = kChunkNumel};
}

// One to a chunk.
std::vector<shm::ParameterPlace> places(uint32_t chunks = kChunks) {
  std::vector<shm::ParameterPlace> result;
  for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
    result.push_back({"p" + std::to_string(chunk), chunk, 0, kChunkNumel});
  }
  return result;
}

SessionOptions options_of(const std::string& job, uint32_t rank, uint32_t ranks) {
  SessionOptions options;
  options.job = job;
  options.rank = options.local_rank = rank;
  options.local_ranks = ranks;
  options.start_daemon = false;
  options.request_timeout_s = options.ranks_timeout_s = kPatienceS;
  return options;
}

Result<std::unique_ptr<Session>> attach(const SessionOptions& options) {
  return Session::attach(shape_for(options.local_ranks), places(), options);
}

float initial_value(uint64_t element) { return std::sin(static_cast<float>(element)); }
float gradient(uint32_t step, uint32_t rank, uint64_t element) {
  return std::cos(static_cast<float>(element % 977 + 31 * step + 7 * rank));
}

Status load(Session& session) {
  std::vector<float> values(kChunkNumel);
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
    for (uint64_t i = 0; i < kChunkNumel; ++i) values[i] = initial_value(chunk * kChunkNumel + i);
    ELIXIR_RETURN_IF_ERROR(session.load_chunk(chunk, values.data()));
  }
  return Status();
}

// Attached and loaded, by rank 0.
Result<std::unique_ptr<Session>> try_begin(const SessionOptions& options) {
  auto session = attach(options);
  Status status = session.status();
  if (status.ok() && options.rank == 0) status = load(**session);
  if (status.ok()) status = (*session)->await_loaded();
  if (!status.ok()) return status;
  return session;
}

// Null: it failed, and so does the test.
std::unique_ptr<Session> begin(const SessionOptions& options) {
  auto session = try_begin(options);
  EXPECT_TRUE(session.ok()) << session.status().message();
  return session.ok() ? std::move(*session) : nullptr;
}

// Ranks 0 and 1.
std::vector<std::unique_ptr<Session>> begin_two(const std::string& job) {
  std::vector<std::unique_ptr<Session>> sessions(2);
  run_threads(2, [&](uint32_t rank) { sessions[rank] = begin(options_of(job, rank, 2)); });
  return sessions;
}

Status run_step(Session& session, uint32_t step) {
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
    ELIXIR_RETURN_IF_ERROR(session.wait_param(chunk, step - 1));
    auto* slot = reinterpret_cast<float*>(session.grad_slot(chunk));
    for (uint64_t i = 0; i < kChunkNumel; ++i) {
      slot[i] = gradient(step, session.rank(), chunk * kChunkNumel + i);
    }
    session.say_gradient(step, chunk, 0);
    ELIXIR_RETURN_IF_ERROR(session.publish_grad(chunk, {.step = step, .micro_step = 1}));
  }
  return session.post_step(verdict_on(step));
}

std::vector<float> gather(const Session& session) {
  std::vector<float> weights;
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
    for (uint32_t rank = 0; rank < session.shape().ranks; ++rank) {
      const auto* shard = reinterpret_cast<const float*>(session.param_shard(chunk, rank));
      weights.insert(weights.end(), shard,
                     shard + session.shape().shard_end(rank) - session.shape().shard_begin(rank));
    }
  }
  return weights;
}

std::vector<float> reference(uint32_t ranks, uint32_t steps) {
  const uint64_t numel = kChunks * kChunkNumel;
  std::vector<float> weights(numel), exp_avg(numel), exp_avg_sq(numel);
  for (uint64_t i = 0; i < numel; ++i) weights[i] = initial_value(i);
  for (uint32_t step = 1; step <= steps; ++step) {
    std::vector<std::vector<float>> grads(ranks, std::vector<float>(numel));
    std::vector<const void*> pointers;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      for (uint64_t i = 0; i < numel; ++i) grads[rank][i] = gradient(step, rank, i);
      pointers.push_back(grads[rank].data());
    }
    optim::UpdateSpan span{};
    span.type = ComputeType::kFp32;
    span.n_grads = static_cast<int>(ranks);
    span.grads = pointers.data();
    span.param = weights.data();
    span.moments[0] = exp_avg.data();
    span.moments[1] = exp_avg_sq.data();
    span.numel = numel;
    optim::AdamOptions options{0.01, 0.9, 0.999, 1e-8, 0.1, UpdateRule::kAdamW};
    optim::adam_update(optim::Isa::kScalar, span, optim::make_adam_step(options, step, 0.5));
  }
  return weights;
}

// A wait is as long as what is waited for.
TEST(SessionTimeouts, GrowWithTheMemoryThatIsToBeFilled) {
  EXPECT_NEAR(with_memory(600, shape_for(1), 1), 600, 1);
  shm::Shape large = shape_for(1);
  large.chunk_numel = 1ull << 30;
  large.n_chunks = large.n_parameters = 64;
  ASSERT_GE(large.session_bytes(), 1ull << 40);
  // A thread fills 1.24 GiB a second of small pages on a busy machine.
  EXPECT_GT(with_memory(600, large, 1), 600 + 2 * 826);
  EXPECT_GT(with_memory(600, large, 8), 600 + 8 * 2 * 826);
}

// As where it is mounted elsewhere, in a container: elixird's own name of its folder is not asked
// for.
TEST(SessionFolder, ElixirdIsReachedWhereTheTrainerSeesIt) {
  const TemporaryFolder home;
  elixir::testing::DaemonProcess daemon({"--no-bandwidth-probe"}, home.path() + "/run");
  ASSERT_TRUE(daemon.running()) << daemon.log();
  std::filesystem::rename(home.path() + "/run", home.path() + "/seen");
  ::setenv("ELIXIR_RUNTIME_DIR", (home.path() + "/seen").c_str(), 1);
  EXPECT_NE(begin(options_of("job", 0, 1)), nullptr);
  ::unsetenv("ELIXIR_RUNTIME_DIR");
}

class SessionTest : public ::testing::Test {
 protected:
  SessionTest() { ::setenv("ELIXIR_RUNTIME_DIR", daemon_.folder().path.c_str(), 1); }

  elixir::testing::DaemonProcess daemon_{{"--no-bandwidth-probe"}};
};

TEST_F(SessionTest, RanksTrainToTheReferencesBits) {
  constexpr uint32_t kSteps = 20;
  for (uint32_t ranks : {1u, 2u, 3u}) {
    const std::vector<float> expected = reference(ranks, kSteps);
    run_threads(ranks, [&](uint32_t rank) {
      const auto session = begin(options_of("bits-" + std::to_string(ranks), rank, ranks));
      ASSERT_NE(session, nullptr);
      for (uint32_t step = 1; step <= kSteps; ++step) ASSERT_TRUE(run_step(*session, step).ok());
      const Result<shm::StepResult> result = session->wait_committed(kSteps);
      ASSERT_TRUE(result.ok());
      EXPECT_EQ(result->metric_mean, 1.0);
      EXPECT_EQ(result->applied, kSteps);
      EXPECT_EQ(result->skipped, 0u);
      ASSERT_TRUE(session->wait_finished(kSteps).ok());
      EXPECT_EQ(gather(*session), expected);
      std::vector<float> masters(kChunkNumel);  // FP32: the params are the masters
      for (uint32_t other = 0; other < ranks; ++other) {
        session->read_masters(1, other, masters.data() + shape_for(ranks).shard_begin(other));
      }
      EXPECT_TRUE(std::equal(masters.begin(), masters.end(), expected.begin() + kChunkNumel));
      const shm::UpdateResult finished = session->last_finished();
      EXPECT_EQ(finished.step, kSteps);
      EXPECT_GT(finished.updated_numel * finished.update_ns, 0u);
    });
  }
}

// Gradients of a chunk for one micro-step more, once its slot is free.
Status publish(Session& session, uint32_t chunk, uint32_t step, uint32_t micro_step) {
  if (micro_step > 1) {
    ELIXIR_RETURN_IF_ERROR(session.request_sum(chunk));
    ELIXIR_RETURN_IF_ERROR(session.wait_taken(chunk));
  } else {
    ELIXIR_RETURN_IF_ERROR(session.wait_param(chunk, step - 1));
  }
  auto* slot = reinterpret_cast<float*>(session.grad_slot(chunk));
  for (uint64_t i = 0; i < kChunkNumel; ++i) {
    slot[i] = gradient(step + 100 * micro_step, session.rank(), chunk * kChunkNumel + i);
  }
  session.say_gradient(step, chunk, 0);
  return session.publish_grad(chunk, {.step = step, .micro_step = micro_step});
}

// A chunk of each rank's own in every pass, which the other one publishes before its post alone;
// one in turn; two in the last pass.
Status run_passes(Session& session, uint32_t step, const std::function<void()>& pause) {
  constexpr uint32_t kPasses = 4;
  const uint32_t rank = session.rank();
  for (uint32_t pass = 1; pass <= kPasses; ++pass) {
    pause();
    ELIXIR_RETURN_IF_ERROR(publish(session, rank, step, pass));
    if (pass % 2 != rank) continue;
    pause();
    ELIXIR_RETURN_IF_ERROR(publish(session, 2, step, (pass + 1) / 2));
  }
  for (const uint32_t chunk : {1 - rank, 3u, 4u}) {
    pause();
    ELIXIR_RETURN_IF_ERROR(publish(session, chunk, step, 1));
  }
  return session.post_step(verdict_on(step));
}

// Each waits for the sum of its own chunk, and neither brings the other's. They go at any speed,
// and no bit depends on it.
TEST_F(SessionTest, RanksThatUseDifferentChunksDoNotWaitForOneAnother) {
  constexpr uint32_t kSteps = 4;
  std::vector<float> weights;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    const auto train = [&](uint32_t rank) {
      std::mt19937_64 random(2 * seed + rank);
      const auto pause = [&] {
        // cannot fail by chance: ranks go at any speed.
        if (random() % 3 == 0) ::usleep(static_cast<useconds_t>(random() % 3000));
      };
      const auto session = begin(options_of("apart", rank, 2));
      ASSERT_NE(session, nullptr);
      for (uint32_t step = 1; step <= kSteps; ++step) {
        const Status status = run_passes(*session, step, pause);
        ASSERT_TRUE(status.ok()) << status.message();
      }
      ASSERT_TRUE(session->wait_finished(kSteps).ok());
      if (rank != 0) return;
      if (weights.empty()) weights = gather(*session);
      EXPECT_EQ(gather(*session), weights) << "seed " << seed;
    };
    run_threads(2, train);
    ASSERT_FALSE(HasFailure());
  }
}

// A rank waits for one that does not come: elixird says so, until it has come.
TEST_F(SessionTest, TheStatusSaysForWhomARankWaitsWhereItAloneKnows) {
  const auto sessions = begin_two("waits");
  ASSERT_TRUE(sessions[0] != nullptr && sessions[1] != nullptr);
  const auto status_says = [&](const std::string& wait) {
    return eventually([&] {
      return daemon_.ask_status().find(R"("waiting":[{"rank":0,"for":")" + wait) !=
             std::string::npos;
    });
  };
  // Longer than the side memory, so that rank 0 waits for rank 1 to take the first piece.
  std::vector<std::byte> sent(3 << 20), taken(sent.size());
  std::thread sends([&] { EXPECT_TRUE(sessions[0]->broadcast(sent).ok()); });
  EXPECT_TRUE(status_says("buffers with rank 1")) << daemon_.ask_status();
  EXPECT_TRUE(sessions[1]->broadcast(taken).ok());
  sends.join();
  EXPECT_EQ(sessions[0]->said_wait().load(), shm::SaidWait{});

  ASSERT_TRUE(publish(*sessions[0], 0, 1, 1).ok());
  std::thread next_pass([&] { EXPECT_TRUE(publish(*sessions[0], 0, 1, 2).ok()); });
  EXPECT_TRUE(status_says("gradients of rank 1 in a backward pass")) << daemon_.ask_status();
  EXPECT_TRUE(publish(*sessions[1], 0, 1, 1).ok());
  next_pass.join();
  EXPECT_EQ(sessions[0]->said_wait().load(), shm::SaidWait{});
}

// elixird keeps the records of a few steps; one that is posted over them ends the job. Here nothing
// else holds a rank back: no chunk waits for its update.
TEST_F(SessionTest, APostWaitsForRanksThatAreStepsBehind) {
  constexpr uint32_t kSteps = 20;
  shm::Shape shape = shape_for(2);
  shape.n_parameters = 1;
  shape.exchange = shm::Exchange::kCollective;
  shape.n_chunks = 0;
  shape.n_gpu_chunks = 1;
  std::unique_ptr<Session> sessions[2];
  run_threads(2, [&](uint32_t rank) {
    auto session = Session::attach(shape, places(1), options_of("ahead", rank, 2));
    ASSERT_TRUE(session.ok()) << session.status().message();
    sessions[rank] = std::move(*session);
    ASSERT_TRUE(sessions[rank]->await_loaded().ok());
  });
  ASSERT_TRUE(sessions[0] != nullptr && sessions[1] != nullptr);
  std::atomic<pid_t> ahead_id = 0;
  std::atomic<uint32_t> posted = 0;
  std::thread ahead([&] {
    ahead_id = ::gettid();
    for (uint32_t step = 1; step <= kSteps; ++step) {
      const Status status = sessions[0]->post_step(verdict_on(step));
      ASSERT_TRUE(status.ok()) << step << ": " << status.message();
      posted = step;
    }
  });
  EXPECT_TRUE(eventually([&] { return posted >= 2 && asleep(ahead_id); }));
  EXPECT_EQ(posted, 2u) << "the first step is not committed";
  for (uint32_t step = 1; step <= kSteps; ++step) {
    const Status status = sessions[1]->post_step(verdict_on(step));
    ASSERT_TRUE(status.ok()) << step << ": " << status.message();
  }
  ahead.join();
  EXPECT_TRUE(sessions[0]->wait_finished(kSteps).ok());
}

// In 16 bits a chunk is two loads, so that threads' loads are interleaved. Frozen chunks go through
// the same slots as the others before them.
TEST_F(SessionTest, SeveralThreadsLoadAtTheSameTime) {
  shm::Shape shape{
      .type = ComputeType::kBf16, .ranks = 1, .n_chunks = 6, .chunk_numel = kChunkNumel};
  shape.n_parameters = shape.n_frozen_chunks = 6;
  const auto session =
      Session::attach(shape, places(shape.total_chunks()), options_of("threads", 0, 1));
  ASSERT_TRUE(session.ok()) << session.status().message();
  const auto value = [](uint32_t chunk, uint64_t i) {
    return std::sin(static_cast<float>(chunk * kChunkNumel + i));
  };
  const auto load_by_three = [&](uint32_t first, uint32_t end) {
    std::atomic<uint32_t> next{first};
    run_threads(3, [&](uint32_t) {
      std::vector<float> values(kChunkNumel);
      for (uint32_t chunk = next++; chunk < end; chunk = next++) {
        for (uint64_t i = 0; i < kChunkNumel; ++i) values[i] = value(chunk, i);
        const Status status = (*session)->load_chunk(chunk, values.data());
        EXPECT_TRUE(status.ok()) << status.message();
      }
    });
  };
  load_by_three(6, 12);
  load_by_three(0, 6);
  ASSERT_TRUE((*session)->await_loaded().ok());
  for (uint32_t chunk = 0; chunk < shape.total_chunks(); ++chunk) {
    std::vector<float> masters(kChunkNumel);
    if (!shape.frozen(chunk)) (*session)->read_masters(chunk, 0, masters.data());
    const auto* params = reinterpret_cast<const uint16_t*>((*session)->param_shard(chunk, 0));
    for (uint64_t i = 0; i < kChunkNumel; ++i) {
      uint16_t rounded = 0, master_low = 0;
      float expected = value(chunk, i);
      if (shape.frozen(chunk)) {  // a word: its upper half as it is
        ASSERT_EQ(params[i], std::bit_cast<uint32_t>(expected) >> 16) << chunk << " " << i;
        continue;
      }
      optim::load_master(ComputeType::kBf16, &expected, 1, &rounded, &master_low);
      ASSERT_EQ(params[i], rounded) << chunk << " " << i;
      ASSERT_EQ(masters[i], expected) << chunk << " " << i;
    }
  }
}

// "rw-s" or the like, of the mapping that holds an address.
std::string protection_of(const std::byte* address) {
  std::ifstream maps("/proc/self/maps");
  const auto place = reinterpret_cast<uintptr_t>(address);
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    char protection[8] = {};
    if (std::sscanf(line.c_str(), "%zx-%zx %7s", &begin, &end, protection) != 3) continue;
    if (begin <= place && place < end) return protection;
  }
  return "none";
}

// CUDA page-locks shared memory only where it is mapped for writing: cudaHostRegister of a
// read-only shared mapping is refused.
TEST_F(SessionTest, WhatIsPageLockedIsMappedForWritingAndProtectedAfterwards) {
  constexpr uint32_t kSteps = 5;
  for (const bool pins : {false, true}) {
    SessionOptions options = options_of(pins ? "pins" : "reads", 0, 1);
    options.pins_params = pins ? 1 : 0;
    const auto session = attach(options);
    ASSERT_TRUE(session.ok()) << session.status().message();
    const std::vector<HostRange> ranges = (*session)->device_ranges();
    EXPECT_EQ(ranges.size(), pins ? 2u : 0u);
    for (const HostRange& range : ranges) EXPECT_EQ(protection_of(range.data), "rw-s");
    EXPECT_EQ(protection_of((*session)->param_shard(0, 0)), pins ? "rw-s" : "r--s");
    ASSERT_TRUE((*session)->protect_params().ok());
    EXPECT_EQ(protection_of((*session)->param_shard(0, 0)), "r--s");
    EXPECT_EQ(protection_of((*session)->grad_slot(0)), "rw-s");
    // The mapping is shared: what elixird writes is seen through it.
    ASSERT_TRUE(load(**session).ok() && (*session)->await_loaded().ok());
    for (uint32_t step = 1; step <= kSteps; ++step) ASSERT_TRUE(run_step(**session, step).ok());
    ASSERT_TRUE((*session)->wait_finished(kSteps).ok());
    EXPECT_EQ(gather(**session), reference(1, kSteps));
  }
}

TEST_F(SessionTest, ACallThatAnotherRankDoesNotMakeIsNamed) {
  EXPECT_TRUE(widen(1, [](double limit_s) {  // which holds for the start, too
    std::unique_ptr<Session> sessions[2];
    run_threads(2, [&](uint32_t rank) {
      SessionOptions options = options_of(fmt::format("call-{}", limit_s), rank, 2);
      options.ranks_timeout_s = limit_s;
      auto session = try_begin(options);
      if (session.ok()) sessions[rank] = std::move(*session);
    });
    if (sessions[0] == nullptr || sessions[1] == nullptr) return false;
    const Status status = sessions[0]->await_loaded("set_parameter()");
    test::expect_refused(
        status, Code::kTimedOut,
        {fmt::format("set_parameter() of rank 0 has waited {:.0f} s for rank 1", limit_s)});
    return true;
  }));
}

TEST_F(SessionTest, AStepOfAnotherRankEndsTheWaitForItsCall) {
  for (const bool step_first : {false, true}) {
    const auto sessions = begin_two("call-or-step-" + std::to_string(step_first));
    ASSERT_TRUE(sessions[0] != nullptr && sessions[1] != nullptr);
    if (step_first) {
      ASSERT_TRUE(run_step(*sessions[1], 1).ok());
    }
    std::thread other([&, waiter = ::gettid()] {
      if (step_first) return;
      EXPECT_TRUE(eventually([waiter] { return asleep(waiter); }));
      run_step(*sessions[1], 1).ok();
    });
    const Status status = sessions[0]->await_loaded("set_parameter()");
    other.join();
    test::expect_refused(status, Code::kProtocol, {"rank 1 posted step 1 while rank 0"});
  }
}

TEST_F(SessionTest, ElixirdsDeathEndsEveryWaitSoonAndSaysSo) {
  const auto session = begin(options_of("death", 0, 1));
  ASSERT_NE(session, nullptr);
  std::thread killer([this] {
    EXPECT_TRUE(test::eventually([] { return test::asleep(::getpid()); }));  // it waits
    daemon_.signal(SIGKILL);
  });
  const Status status = session->wait_finished(1);
  killer.join();
  test::expect_refused(status, Code::kUnavailable, {"elixird is gone"});
  EXPECT_EQ(session->wait_committed(1).status().code(), Code::kUnavailable);
}

// Its socket is open and its process there, so that nothing but time tells.
TEST_F(SessionTest, AnElixirdThatStandsStillEndsEveryWaitForItAloneAfterTheLimit) {
  constexpr double kLimitS = 0.5;
  const auto session = begin(options_of("still", 0, 1));
  ASSERT_NE(session, nullptr);
  session->set_request_timeout_s(kLimitS);
  daemon_.signal(SIGSTOP);
  std::atomic<bool> over{false};
  std::thread rescue([&] {  // of a wait without a limit, which then ends well
    test::eventually([&] { return over.load(); });
    daemon_.signal(SIGCONT);
  });
  EXPECT_TRUE(run_step(*session, 1).ok());
  const std::pair<const char*, std::function<Status()>> waits[] = {
      {"elixird's verdict on a step", [&] { return session->wait_committed(1).status(); }},
      {"elixird's update of a chunk", [&] { return session->wait_param(0, 1); }},
      {"elixird's update of a step", [&] { return session->wait_finished(1); }}};
  for (const auto& [what, wait] : waits) {
    const int64_t start_ns = monotonic_ns();
    const Status status = wait();
    EXPECT_GE(seconds_since(start_ns), kLimitS);
    EXPECT_EQ(status.code(), Code::kTimedOut) << what;
    EXPECT_THAT(status.message(), HasSubstr(what));
    EXPECT_THAT(status.message(), HasSubstr("elixird lives but does not move on: look at its log"));
  }
  over = true;
  rescue.join();
  EXPECT_TRUE(test::eventually([&] { return session->wait_finished(1).ok(); }));
}

// It may evaluate, or save, for as long as it likes.
TEST_F(SessionTest, ARankThatDoesNotPostIsWaitedForBeyondTheLimitOfARequest) {
  EXPECT_TRUE(widen(0.3, [](double limit_s) {  // which elixird is to keep to after the post
    const auto sessions = begin_two(fmt::format("patience-{}", limit_s));
    if (sessions[0] == nullptr || sessions[1] == nullptr) return true;  // has failed
    sessions[0]->set_request_timeout_s(limit_s);
    EXPECT_TRUE(run_step(*sessions[0], 1).ok());
    std::thread late([&] {
      // cannot fail by chance: the rank may be as late as it likes.
      std::this_thread::sleep_for(std::chrono::duration<double>(1.5 * limit_s));
      EXPECT_TRUE(run_step(*sessions[1], 1).ok());
    });
    const Status status = sessions[0]->wait_param(0, 1);
    late.join();
    return status.ok();
  }));
}

TEST_F(SessionTest, ARankThatNeverComesIsATimeoutThatAsksForIt) {
  SessionOptions options = options_of("lonely", 0, 2);
  options.ranks_timeout_s = 1;
  options.ranks_said = "RANK and WORLD_SIZE say so";
  const Status status = attach(options).status();
  test::expect_refused(status, Code::kTimedOut, {"2 ranks", "; RANK and WORLD_SIZE say so"});
}

TEST_F(SessionTest, RanksWithDifferentPlansAreRefused) {
  // Whichever comes second is refused; the first waits in vain until its own time is up.
  EXPECT_TRUE(widen(1, [](double limit_s) {
    Status ends[2];
    run_threads(2, [&](uint32_t rank) {
      SessionOptions options = options_of(fmt::format("differ-{}", limit_s), rank, 2);
      options.ranks_timeout_s = limit_s;
      shm::Shape shape = shape_for(2);
      shape.chunk_numel += 128 * rank;
      ends[rank] = Session::attach(shape, places(), options).status();
      EXPECT_FALSE(ends[rank].ok());
    });
    const Status& refused = ends[ends[0].code() == Code::kInvalidArgument ? 0 : 1];
    if (refused.code() != Code::kInvalidArgument) return false;
    EXPECT_THAT(refused.message(), HasSubstr("another plan"));
    return true;
  }));
}

TEST_F(SessionTest, AJobsNameThatWouldBeCutIsRefused) {
  EXPECT_TRUE(attach(options_of(std::string(127, 'j'), 0, 1)).ok());
  EXPECT_EQ(attach(options_of(std::string(128, 'j'), 0, 1)).status().code(),
            Code::kInvalidArgument);
}

TEST(SessionWithoutElixird, IsUnavailable) {
  SessionOptions options = options_of("none", 0, 1);
  options.runtime_dir = "/tmp/elixir-nobody-" + std::to_string(::getpid());
  EXPECT_EQ(attach(options).status().code(), Code::kUnavailable);
}

// An elixird of another version, and no elixird at all.
TEST(SessionWithoutElixird, WhoAnswersInAnotherVersionOrNonsenseIsNamed) {
  shm::AttachReply newer{};
  shm::seal_message(newer);
  newer.header.version += 1;
  const auto* const bytes = reinterpret_cast<const char*>(&newer);
  const std::tuple<std::string, Code, std::string> cases[] = {
      {std::string(bytes, sizeof newer), Code::kVersionMismatch,
       "install the same Elixir for both and restart elixird"},
      {"HTTP/1.1 400 Bad Request\r\n\r\nand more", Code::kProtocol, "magic"}};
  for (const auto& [answer, code, text] : cases) {
    SessionOptions options = options_of("stranger", 0, 1);
    const TemporaryFolder folder;
    options.runtime_dir = folder.path();
    const Result<UniqueFd> listener = shm::listen_attach(folder.path() + "/attach.sock");
    ASSERT_TRUE(listener.ok()) << listener.status().message();
    std::thread stranger([&, &answer = answer] {
      pollfd asked{listener->get(), POLLIN, 0};
      ASSERT_EQ(::poll(&asked, 1, kPatienceMs), 1);
      const Result<UniqueFd> peer = shm::accept_attach(listener->get());
      ASSERT_TRUE(peer.ok()) << peer.status().message();
      ASSERT_TRUE(shm::receive_packet(peer->get(), kPatienceMs).ok());
      ASSERT_TRUE(shm::send_packet(peer->get(), std::as_bytes(std::span(answer)), {}, 1000).ok());
    });
    const Status status = attach(options).status();
    stranger.join();
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_THAT(status.message(), HasSubstr(text));
  }
}

}  // namespace
}  // namespace elixir::test
