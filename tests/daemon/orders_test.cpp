// Every word that orders memory between elixird and a trainer, with both sides as they are: an
// elixird and its trainers' sessions, in one process and one mapping (one_mapping.h). The thread
// sanitizer reports what is read or written without its order; a processor might forgive it.

#include <gtest/gtest.h>
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/session/session.h"
#include "daemon/daemon.h"
#include "tests/client/verdict.h"
#include "tests/daemon/one_mapping.h"
#include "tests/support/run_threads.h"
#include "tests/support/temporary_folder.h"

namespace elixir::testing {
namespace {

constexpr uint32_t kRanks = 2, kChunks = 3;
constexpr uint64_t kChunkNumel = 128 * 16;
constexpr uint32_t kSteps = 60;

shm::Shape shape() {
  return {.type = ComputeType::kFp32,
          .ranks = kRanks,
          .n_chunks = kChunks,
          .n_parameters = kChunks,
          .chunk_numel = kChunkNumel};
}

std::vector<shm::ParameterPlace> places() {
  std::vector<shm::ParameterPlace> all;
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
    all.push_back({"p" + std::to_string(chunk), chunk, 0, kChunkNumel});
  }
  return all;
}

// elixird's event loop in a thread, from construction to destruction.
class DaemonThread {
 public:
  DaemonThread() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) sigaddset(&signals, signal);
    ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    daemon::Config config;
    config.runtime_dir = folder();
    config.workers = 2;
    config.slice_numel = 64;  // a chunk takes both of them
    config.no_bandwidth_probe = true;
    config.log_level = LogLevel::kWarn;
    auto started = daemon::Daemon::start(config);
    ELIXIR_CHECK(started.ok(), "{}", started.status().message());
    daemon_ = std::move(*started);
    thread_ = std::thread([this] { EXPECT_EQ(daemon_->run(), 0); });
  }
  ~DaemonThread() {
    ::kill(::getpid(), SIGTERM);  // blocked in every thread: the event loop reads it
    thread_.join();
  }
  std::string folder() const { return home_.path() + "/run"; }

 private:
  TemporaryFolder home_;
  std::unique_ptr<daemon::Daemon> daemon_;
  std::thread thread_;
};

// What a trainer reads is summed up here, so that it is read.
std::atomic<uint64_t> sink = 0;

class Trainer {
 public:
  Trainer(const std::string& folder, const std::string& job, uint32_t rank,
          const shm::StepRules& rules)
      : rules_(rules) {
    SessionOptions options;
    options.runtime_dir = folder;
    options.job = job;
    options.rank = options.local_rank = rank;
    options.local_ranks = kRanks;
    options.start_daemon = false;
    options.rules = rules;
    auto session = Session::attach(shape(), places(), options);
    EXPECT_TRUE(session.ok()) << session.status().message();
    session_ = std::move(*session);
  }

  void load() {
    const std::vector<float> values(kChunkNumel, 0.5f);
    for (uint32_t chunk = 0; chunk < kChunks && session_->rank() == 0; ++chunk) {
      require(session_->load_chunk(chunk, values.data()));
    }
    require(session_->await_loaded());
  }

  Session& session() { return *session_; }

  void train(uint32_t step) {
    shm::StepRecord record = test::verdict_on(step);
    record.clip_norm = rules_.norms != 0 ? 1 : 0;
    if (rules_.immediate != 0) session_->open_step(record);
    for (uint32_t micro_step = 1; micro_step <= rules_.accumulate; ++micro_step) {
      for (uint32_t chunk = 0; chunk < kChunks; ++chunk) publish(chunk, step, micro_step);
    }
    // elixird has looked at the open record; it is written once more now.
    if (rules_.immediate != 0) require(session_->wait_param(0, step));
    require(session_->post_step(record));
    const Result<shm::StepResult> result = session_->wait_committed(step);
    require(result.status());
    EXPECT_EQ(result->applied, step);
    EXPECT_EQ(result->metric_mean, 1);
    if (step % 2 != 0) return;
    require(session_->wait_finished(step));
    EXPECT_EQ(session_->last_finished().updated_numel, kChunks * kChunkNumel);
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) read_params(chunk);
  }

 private:
  static void require(const Status& status) { ELIXIR_CHECK(status.ok(), "{}", status.message()); }

  void publish(uint32_t chunk, uint32_t step, uint32_t micro_step) {
    if (micro_step > 1) {
      require(session_->wait_taken(chunk));
    } else if (step > 1) {
      if (chunk == 1) {
        while (session_->param_step(chunk) < step - 1) std::this_thread::yield();
      } else {
        require(session_->wait_param(chunk, step - 1));
      }
      read_params(chunk);
    }
    auto* const slot = reinterpret_cast<float*>(session_->grad_slot(chunk));
    for (uint64_t i = 0; i < kChunkNumel; ++i) slot[i] = 1.0f / static_cast<float>(step + i);
    if (micro_step == 1) session_->say_gradient(step, /*parameter=*/chunk, /*group=*/0);
    require(session_->publish_grad(
        chunk, {.step = step, .micro_step = micro_step, .to_sum = rules_.accumulate > 1}));
  }

  void read_params(uint32_t chunk) const {
    uint64_t sum = 0;
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      const auto* const words =
          reinterpret_cast<const uint32_t*>(session_->param_shard(chunk, rank));
      for (uint64_t i = 0; i < shape().shard_numel(); ++i) sum += words[i];
    }
    sink.fetch_add(sum, std::memory_order_relaxed);
  }

  const shm::StepRules rules_;
  std::unique_ptr<Session> session_;
};

class Orders : public ::testing::Test {
 protected:
  using Trainers = std::vector<std::unique_ptr<Trainer>>;

  Trainers start(const std::string& job, const shm::StepRules& rules) {
    Trainers trainers(kRanks);
    const MessagesOrder order;
    run_threads(kRanks, [&](uint32_t rank) {
      trainers[rank] = std::make_unique<Trainer>(daemon_.folder(), job, rank, rules);
      trainers[rank]->load();
    });
    return trainers;
  }

  void train(const std::string& job, const shm::StepRules& rules) {
    const uint32_t mapped_before = mapped_again();
    const Trainers trainers = start(job, rules);
    // control, grads and sums of each rank, params and states of both, and the side memory behind
    // the other one's grads: no second mapping of any.
    EXPECT_EQ(mapped_again() - mapped_before, kRanks * (3 + 2 * kRanks + (kRanks - 1)));
    run_threads(kRanks, [&](uint32_t rank) {
      for (uint32_t step = 1; step <= kSteps; ++step) trainers[rank]->train(step);
    });
  }

  DaemonThread daemon_;
};

// A step, a micro-step, then the revision that says that both are there: no sanitizer looks at the
// order of atomics. This thread publishes an instruction at a time, and looks after each. The steps
// are so far away that elixird does not look.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)

constexpr uint32_t kFirstStep = 1000;

bool is_early(const shm::GradRecord& record) {
  const uint32_t revision = record.grad_publication.load(std::memory_order_acquire).revision;
  const uint32_t step = record.grad_step.load(std::memory_order_relaxed);
  const uint32_t micro_step = record.grad_micro_step.load(std::memory_order_relaxed);
  return revision != 0 && (step < kFirstStep + revision || micro_step < revision);
}

const shm::GradRecord& newest_record() {
  return *reinterpret_cast<const shm::GradRecord*>(newest_mapping("elixir-control") +
                                                   shape().grad_records_offset());
}

uint32_t newest_rank() {
  return reinterpret_cast<const shm::ControlHeader*>(newest_mapping("elixir-control"))->rank;
}

bool publish(Session& session, uint32_t n) {
  return session.publish_grad(0, {.step = kFirstStep + n, .micro_step = n}).ok();
}

// While it lives, the thread that made it is interrupted after each of its instructions.
class AnInstructionAtATime {
 public:
  explicit AnInstructionAtATime(const shm::GradRecord& record) {
    record_ = &record;
    instructions_ = early_ = 0;
    struct sigaction action {};
    action.sa_sigaction = look;
    action.sa_flags = SA_SIGINFO;
    ::sigaction(SIGTRAP, &action, &before_);
    on_ = 1;
    asm volatile("int3" ::: "memory");
  }
  ~AnInstructionAtATime() {
    on_ = 0;  // the next instruction is the last one
    ::sigaction(SIGTRAP, &before_, nullptr);
  }

  static uint64_t instructions() { return instructions_; }
  static uint64_t early() { return early_; }

 private:
  static void look(int, siginfo_t*, void* context) {
    constexpr greg_t kTrapFlag = 0x100;
    greg_t& flags = static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL];
    flags = on_ != 0 ? flags | kTrapFlag : flags & ~kTrapFlag;
    ++instructions_;
    early_ += is_early(*record_) ? 1 : 0;
  }

  struct sigaction before_ {};
  static inline const shm::GradRecord* record_ = nullptr;
  static inline volatile sig_atomic_t on_ = 0;
  static inline uint64_t instructions_ = 0, early_ = 0;
};

TEST_F(Orders, OfTheWordsOfAPublication) {
  constexpr uint32_t kPublications = 20;
  const Trainers trainers = start("words", {});
  const shm::GradRecord& record = newest_record();
  Session& session = trainers[newest_rank()]->session();
  bool published = true;
  {
    const AnInstructionAtATime stepping(record);
    for (uint32_t n = 1; published && n <= kPublications; ++n) {
      published = publish(session, n);
    }
  }
  EXPECT_TRUE(published);
  EXPECT_EQ(record.grad_publication.load().revision, kPublications);
  EXPECT_GT(AnInstructionAtATime::instructions(), uint64_t{10} * kPublications);
  EXPECT_EQ(AnInstructionAtATime::early(), 0u);
}

#endif

TEST_F(Orders, OfDeferredUpdates) { train("deferred", {.accumulate = 1}); }
TEST_F(Orders, OfSumsOverMicroSteps) { train("sums", {.accumulate = 2}); }
TEST_F(Orders, OfImmediateUpdates) { train("immediate", {.accumulate = 1, .immediate = 1}); }
TEST_F(Orders, OfNormsThatAreTakenEarly) { train("norms", {.accumulate = 1, .norms = 1}); }

}  // namespace
}  // namespace elixir::testing
