// A deferred step is a commit: whoever dies, a job's states are those of the last step that all
// ranks had posted. Trainers are processes of their own, killed at random instants; this one keeps
// the job's memory and looks at it once elixird has ended the job.
//
//   ELIXIR_TEST_SEED   another sequence of instants (it is printed)
//   ELIXIR_EVERY_CASE  five times as many kills

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <thread>

#include "base/clock.h"
#include "tests/daemon/daemon_process.h"
#include "tests/daemon/modes.h"
#include "tests/support/every_case.h"
#include "tests/support/patience.h"
#include "tests/support/sanitized.h"

namespace elixir::testing {
namespace {

constexpr uint32_t kChunks = 4;   // of Layout::kLarge
constexpr uint32_t kSteps = 200;  // then a trainer waits to be killed

constexpr Verdicts kNorms{.norms = true}, kClipped{.norms = true, .clip_norm = 100};

struct Plan {
  Mode mode;
  ComputeType type = ComputeType::kBf16;
  uint32_t die_in_step = 0;  // after half of its chunks; rank 0
  // Where rank 0 dies in its updates of step die_in_step, of one of the swing chunks.
  std::optional<FakeTrainer::SwingPoint> die_at = std::nullopt;
  uint32_t die_in_chunk = 0;

  Training training() const { return {.mode = mode, .type = type, .layout = Layout::kLarge}; }
  bool early() const { return mode.spare_slots > 0; }
};

// ---- the trainer's process ----

// The job is over.
template <typename Outcome>
void end_if_failed(const Outcome& outcome) {
  if (!outcome.ok()) ::_exit(0);
}

// Publishes a round; waits for what a trainer waits for.
void publish(FakeTrainer& trainer, const Plan& plan, uint32_t rank, uint32_t step, uint32_t round) {
  const FakeModel model = plan.training().model();
  for (uint32_t chunk = kChunks; chunk-- > 0;) {
    const auto grads = fake_gradient(model, rank, chunk, step, round);
    end_if_failed(trainer.wait_param(chunk, step - 1));
    const auto updates_end = [&] { return trainer.chunk_record(chunk).update_end_ns.load(); };
    const uint64_t updated_before = updates_end();
    if (round > 1) end_if_failed(trainer.wait_taken(chunk));
    trainer.write_grads(chunk, grads.data(), step, round);
    trainer.ring_grads(chunk);
    if (step != plan.die_in_step || plan.die_at || chunk != kChunks / 2) continue;
    if (plan.mode.immediate) end_if_failed(trainer.wait_param(chunk, step));
    if (plan.early()) test::eventually([&] { return updates_end() != updated_before; });
    if (rank == 0) ::raise(SIGKILL);
    for (;;) ::pause();
  }
}

[[noreturn]] void train(const FakeTrainer::Options& options, const Plan& plan, int ready, int go) {
  auto trainer = FakeTrainer::attach(options);
  end_if_failed(trainer);
  end_if_failed((*trainer)->await_peers());
  end_if_failed((*trainer)->hello());
  if (options.rank == 0) end_if_failed((*trainer)->load(initial_values(plan.training().model())));
  end_if_failed((*trainer)->await_ready());
  char byte = 'r';
  if (::write(ready, &byte, 1) != 1 || ::read(go, &byte, 1) != 1) ::_exit(1);
  for (uint32_t step = 1; step <= kSteps; ++step) {
    const shm::StepRecord record = plan.training().record(step);
    if (plan.mode.immediate || plan.early()) (*trainer)->open(record);
    for (uint32_t round = 1; round <= plan.mode.accumulate; ++round) {
      publish(**trainer, plan, options.rank, step, round);
    }
    (*trainer)->post(record);
    if (plan.mode.swing_chunks == 0) continue;
    end_if_failed((*trainer)->swing(step, [&](uint32_t chunk, FakeTrainer::SwingPoint point) {
      const bool dies = plan.die_at == point && step == plan.die_in_step && options.rank == 0;
      if (dies && chunk == plan.die_in_chunk) ::raise(SIGKILL);
    }));
  }
  for (;;) ::pause();
}

// ---- this process ----

struct Trainer {
  pid_t pid = -1;
  UniqueFd ready, go;

  Trainer(const FakeTrainer::Options& options, const Plan& plan) {
    int ready_pipe[2], go_pipe[2];
    EXPECT_EQ(::pipe2(ready_pipe, O_CLOEXEC) | ::pipe2(go_pipe, O_CLOEXEC), 0);
    pid = ::fork();
    if (pid == 0) train(options, plan, ready_pipe[1], go_pipe[0]);
    ::close(ready_pipe[1]);
    ::close(go_pipe[0]);
    ready.reset(ready_pipe[0]);
    go.reset(go_pipe[1]);
  }
  ~Trainer() { kill(); }
  Trainer(const Trainer&) = delete;

  bool wait_ready() const {
    char byte;
    return ::read(ready.get(), &byte, 1) == 1;
  }
  void start() const { EXPECT_EQ(::write(go.get(), "g", 1), 1); }
  void kill() {
    if (pid < 0) return;
    ::kill(pid, SIGKILL);
    reap();
  }
  void reap() {
    ::waitpid(pid, nullptr, 0);
    pid = -1;
  }

  // Descriptors of its own of the memory that the process has, in the order in which it got them.
  std::vector<UniqueFd> memory(const std::string& name) const {
    const std::string folder = fmt::format("/proc/{}/fd", pid);
    std::map<int, UniqueFd> found;
    DIR* const entries = ::opendir(folder.c_str());
    EXPECT_NE(entries, nullptr);
    for (dirent* entry; (entry = ::readdir(entries)) != nullptr;) {
      char target[256] = {};
      const std::string path = folder + "/" + entry->d_name;
      if (::readlink(path.c_str(), target, sizeof target - 1) <= 0) continue;
      if (std::string(target) != "/memfd:" + name + " (deleted)") continue;
      found[std::atoi(entry->d_name)].reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    }
    ::closedir(entries);
    std::vector<UniqueFd> fds;
    for (auto& [number, fd] : found) fds.push_back(std::move(fd));
    return fds;
  }
};

// The two ranks of a job, and what elixird and they say in its memory.
class KilledJob {
 public:
  // Both attached and loaded; they train from start() on.
  KilledJob(const DaemonProcess& daemon, const Plan& plan, const std::string& name)
      : job_(options(daemon, plan, name)) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      trainers_.push_back(std::make_unique<Trainer>(job_.options_of(rank), plan));
    }
    for (uint32_t rank = 0; rank < 2; ++rank) {
      const Trainer& trainer = *trainers_[rank];
      EXPECT_TRUE(trainer.wait_ready());
      std::vector<UniqueFd> control = trainer.memory("elixir-control");
      EXPECT_EQ(control.size(), 1u);
      auto watched =
          FakeTrainer::watch(job_.options_of(rank), {.control = std::move(control.at(0)),
                                                     .params = trainer.memory("elixir-params"),
                                                     .states = trainer.memory("elixir-state"),
                                                     .swings = trainer.memory("elixir-swing")});
      EXPECT_TRUE(watched.ok()) << watched.status().message();
      job_.ranks().push_back(std::move(*watched));
    }
  }

  void start() const {
    for (const auto& trainer : trainers_) trainer->start();
  }
  Trainer& trainer(uint32_t rank) { return *trainers_[rank]; }
  void wait_for_the_end() {
    ASSERT_TRUE(test::eventually([&] {
      return job_.rank(0).header().fault.load(std::memory_order_acquire) != 0;
    })) << "elixird has not ended the job";
  }

  FakeJob& job() { return job_; }
  uint32_t committed() { return job_.rank(0).header().committed_step.load(); }
  uint32_t finished() { return job_.rank(0).header().finished_step.load(); }
  // The last step that every rank has posted.
  uint32_t posted() {
    return std::min(job_.rank(0).header().posted_step.load(),
                    job_.rank(1).header().posted_step.load());
  }
  // Chunks whose gradients of the step after it some rank had published.
  uint32_t published_since() {
    uint32_t count = 0;
    for (const auto& rank : job_.ranks()) {
      for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
        count += rank->grad_record(chunk).grad_step.load() > committed();
      }
    }
    return count;
  }
  // Updates of swing chunks of the last step that no trainer has said to have made; and the
  // elements that elixird had to update there, the chunks that do not swing among them.
  uint32_t swings_taken_over() {
    uint32_t count = 0;
    for (uint32_t chunk = job_.model().shape.first_swing(); chunk < kChunks; ++chunk) {
      for (uint32_t rank = 0; rank < 2; ++rank) count += !has_swung(rank, chunk);
    }
    return count;
  }
  uint64_t numel_to_update() {
    const shm::Shape& shape = job_.model().shape;
    uint64_t numel = 0;
    for (const shm::ParameterPlace& place : job_.model().places) {
      for (uint32_t rank = 0; rank < shape.ranks; ++rank) {
        const uint64_t begin = std::max(place.offset, shape.shard_begin(rank));
        const uint64_t end = std::min(place.offset + place.numel, shape.shard_end(rank));
        const bool made = shape.swings(place.chunk) && has_swung(rank, place.chunk);
        if (!made && begin < end) numel += end - begin;
      }
    }
    return numel;
  }

 private:
  static FakeJob::Options options(const DaemonProcess& daemon, const Plan& plan,
                                  const std::string& name) {
    FakeJob::Options options = plan.training().options();
    options.folder = daemon.folder();
    options.name = name;
    return options;
  }
  bool has_swung(uint32_t rank, uint32_t chunk) {
    return job_.rank(rank).swing_record(chunk).step.load() == committed();
  }

  FakeJob job_;
  std::vector<std::unique_ptr<Trainer>> trainers_;
};

// The states after every step, computed by the scalar kernel as far as they are asked for.
class Expected {
 public:
  explicit Expected(const Plan& plan) : plan_(plan), after_{Reference(plan.training().model())} {}
  const Reference& after(uint32_t step) {
    while (after_.size() <= step) {
      Reference next = after_.back();
      const auto number = static_cast<uint32_t>(after_.size());
      next.step(plan_.training().record(number), plan_.mode.accumulate);
      after_.push_back(std::move(next));
    }
    return after_[step];
  }

 private:
  const Plan plan_;
  std::vector<Reference> after_;
};

class Commit : public ::testing::Test {
 protected:
  Commit() {
    const char* const text = std::getenv("ELIXIR_TEST_SEED");
    seed_ = text != nullptr ? std::strtoull(text, nullptr, 0) : std::random_device()();
    random_.seed(seed_);
    std::printf("ELIXIR_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed_));
  }

  std::unique_ptr<KilledJob> begin(const Plan& plan) {
    return std::make_unique<KilledJob>(daemon_, plan,
                                       fmt::format("{}-{}", plan.mode.name, jobs_++));
  }

  // How long the first steps take here and now, in microseconds, the least of three: instants
  // within that time hit steps on a machine of any speed.
  uint64_t time_of_steps_us(const Plan& plan, uint32_t steps) {
    int64_t least_ns = std::numeric_limits<int64_t>::max();
    for (int i = 0; i < 3; ++i) {
      const auto run = begin(plan);
      const int64_t start_ns = monotonic_ns();
      run->start();
      EXPECT_TRUE(test::eventually([&] { return run->committed() >= steps; }));
      least_ns = std::min(least_ns, monotonic_ns() - start_ns);
    }
    return static_cast<uint64_t>(least_ns) / 1000;
  }

  DaemonProcess daemon_{{"--workers", "2", "--test-slice-numel", "1024"}};
  uint64_t seed_ = 0;
  std::mt19937_64 random_;
  uint32_t jobs_ = 0;
};

TEST_F(Commit, WhoeverDiesWheneverTheStatesAreThoseOfAStep) {
  const bool nightly = every_case();
  const int share = nightly && !kSanitized ? 1 : 5;
  struct Runs {
    Plan plan;
    int number;
  };
  const Runs runs[] = {
      {{{.name = "plain"}, ComputeType::kFp32}, 20},
      {{{.name = "clipped", .verdicts = kClipped}}, 20},
      {{{.name = "rounds", .accumulate = 2, .verdicts = kClipped}}, 20},
      {{{.name = "early", .spare_slots = kChunks, .verdicts = kClipped}}, 200 / share},
      {{{.name = "early-rounds", .accumulate = 2, .spare_slots = 2, .verdicts = kClipped},
        ComputeType::kFp16},
       100 / share},
      {{{.name = "swing", .swing_chunks = 3, .swing_lanes = 2, .verdicts = kClipped}}, 200 / share},
      {{{.name = "swing-rounds", .accumulate = 2, .swing_chunks = kChunks, .swing_lanes = 2},
        ComputeType::kFp32},
       50 / share},
      {{{.name = "swing-early",
         .spare_slots = 1,
         .swing_chunks = 2,
         .swing_lanes = 1,
         .verdicts = kClipped},
        ComputeType::kFp16},
       50 / share},
  };
  for (const auto& [plan, least] : runs) {
    Expected expected(plan);
    uint32_t within = 0, steps = 0, taken_over = 0;
    const uint64_t longest_us = time_of_steps_us(plan, 6);
    // Where a kill lands is chance: a few runs may all miss what is to be hit, many do not.
    const auto hit = [&, swings = plan.mode.swing_chunks > 0] {
      return within > 0 && steps > 0 && (!swings || taken_over > 0);
    };
    int number = 0;
    for (; number < least || (!hit() && number < 100 * least); ++number) {
      const auto run = begin(plan);
      const auto delay = std::chrono::microseconds(random_() % longest_us);
      const uint64_t victims = 1 + random_() % 3;  // one, the other, both
      run->start();
      // cannot fail by chance: whenever it dies, the states are those of a step.
      std::this_thread::sleep_for(delay);
      for (uint32_t rank = 0; rank < 2; ++rank) {
        if ((victims >> rank & 1) != 0) run->trainer(rank).kill();
      }
      run->wait_for_the_end();
      const uint32_t committed = run->committed();
      SCOPED_TRACE(fmt::format("{} {}: seed {}, after {} us, victims {}, step {}", plan.mode.name,
                               number, seed_, delay.count(), victims, committed));
      const Status same = run->job().compare(expected.after(committed));
      EXPECT_TRUE(same.ok()) << same.message();
      EXPECT_EQ(run->finished(), committed);
      // What both had posted before the first death is promised; one may have posted since.
      EXPECT_GE(run->posted(), committed);
      within += run->published_since() > 0;
      taken_over += run->swings_taken_over();
      steps += committed;
      ASSERT_TRUE(daemon_.running()) << daemon_.log();
    }
    std::printf("%s: %u steps in %d runs, %u of them killed within a step; %u swing updates\n",
                plan.mode.name, steps, number, within, taken_over);
    EXPECT_TRUE(hit()) << "no kill has hit anything, or left a swing update undone";
  }
}

// Wherever in an update: elixird makes it, from the states and gradients that it was of.
TEST_F(Commit, WhoDiesInTheMidstOfASwingUpdateLeavesAStep) {
  for (const FakeTrainer::SwingPoint point : FakeTrainer::kSwingPoints) {
    for (uint32_t chunk = 1; chunk < kChunks; ++chunk) {
      const Plan plan{
          .mode = {.name = "swing-point", .swing_chunks = kChunks - 1, .swing_lanes = 2},
          .die_in_step = 4,
          .die_at = point,
          .die_in_chunk = chunk};
      SCOPED_TRACE(fmt::format("at point {} of chunk {}", static_cast<int>(point), chunk));
      const auto run = begin(plan);
      run->start();
      run->trainer(0).reap();  // it kills itself
      run->wait_for_the_end();
      EXPECT_EQ(run->committed(), 4u);
      EXPECT_EQ(run->finished(), 4u);
      const Status same = run->job().compare(Expected(plan).after(4));
      EXPECT_TRUE(same.ok()) << same.message();
      // More where the rank has died before elixird saw what it said.
      const uint64_t updated = run->job().rank(0).update_result(4).updated_numel;
      EXPECT_GE(updated, run->numel_to_update());
      EXPECT_LE(updated, shm::total_numel(run->job().model().places));
    }
  }
}

// The comparison can tell: states between two steps are no step's.
TEST_F(Commit, ImmediateUpdatesAreNoCommit) {
  for (const Mode& mode :
       {Mode{.name = "immediate", .immediate = true}, Mode{.name = "deferred", .verdicts = kNorms},
        Mode{.name = "early", .spare_slots = kChunks, .verdicts = kNorms}}) {
    SCOPED_TRACE(mode.name);
    const Plan plan{.mode = mode, .die_in_step = 5};
    Expected expected(plan);
    const auto run = begin(plan);
    run->start();
    run->trainer(0).reap();  // it kills itself
    run->wait_for_the_end();
    EXPECT_GT(run->published_since(), 0u);
    if (!mode.immediate) {
      EXPECT_EQ(run->committed(), 4u);
      EXPECT_TRUE(run->job().compare(expected.after(4)).ok());
      continue;
    }
    // The dead rank waited for chunks of step 5, not for its peer's posts.
    EXPECT_LE(run->committed(), 4u);
    for (uint32_t step = 0; step <= 5; ++step) {
      EXPECT_FALSE(run->job().compare(expected.after(step)).ok()) << step;
    }
  }
}

}  // namespace
}  // namespace elixir::testing
