// A deferred step is a commit: whoever dies, a job's states are those of the last step that all
// ranks had posted. Trainers are processes of their own, killed at random instants; this one keeps
// the job's memory and looks at it once elixird has ended the job.
//
//   ELIXIR_TEST_SEED  another sequence of instants (it is printed)

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
#include "optim_cpu/master.h"
#include "tests/daemon/daemon_process.h"
#include "tests/daemon/fake_job.h"
#include "tests/support/patience.h"
#include "tests/support/sanitized.h"

namespace elixir::testing {
namespace {

constexpr uint32_t kChunks = 4;
constexpr uint64_t kChunkNumel = 128 * 37 * 4;
constexpr uint32_t kSteps = 200;  // then a trainer waits to be killed

struct Plan {
  const char* name;
  ComputeType type;
  uint32_t accumulate, norms, immediate;
  double clip_norm;
  uint32_t die_in_step = 0;  // after half of its chunks; rank 0
  uint32_t spare_slots = 0;  // updates are early with some
  uint32_t swing_chunks = 0, swing_lanes = 0;
  // Where rank 0 dies in its updates of step die_in_step, of one of the swing chunks.
  std::optional<FakeTrainer::SwingPoint> die_at = std::nullopt;
  uint32_t die_in_chunk = 0;

  FakeModel model() const {
    FakeModel model = make_model(type, 2, kChunks, kChunkNumel);
    model.shape.n_spare_slots = spare_slots;
    model.shape.n_swing_chunks = swing_chunks;
    model.shape.n_swing_lanes = swing_lanes;
    return model;
  }
  bool early() const { return spare_slots > 0; }
  shm::StepRecord record(uint32_t step) const {
    shm::StepRecord record = make_record(step, 2);
    record.clip_norm = clip_norm;
    return record;
  }
};

// ---- the trainer's process ----

// The job is over.
template <typename Outcome>
void end_if_failed(const Outcome& outcome) {
  if (!outcome.ok()) ::_exit(0);
}

// Publishes a round; waits for what a trainer waits for.
void publish(FakeTrainer& trainer, const Plan& plan, uint32_t rank, uint32_t step, uint32_t round) {
  const FakeModel model = plan.model();
  for (uint32_t chunk = kChunks; chunk-- > 0;) {
    const auto grads = fake_gradient(model, rank, chunk, step, round);
    end_if_failed(trainer.wait_param(chunk, step - 1));
    const auto updates_end = [&] { return trainer.chunk_record(chunk).update_end_ns.load(); };
    const uint64_t updated_before = updates_end();
    if (round > 1) end_if_failed(trainer.wait_taken(chunk));
    trainer.write_grads(chunk, grads.data(), step, round);
    trainer.ring_grads(chunk);
    if (step != plan.die_in_step || plan.die_at || chunk != kChunks / 2) continue;
    if (plan.immediate != 0) end_if_failed(trainer.wait_param(chunk, step));
    while (plan.early() && updates_end() == updated_before) ::usleep(100);
    if (rank == 0) ::raise(SIGKILL);
    for (;;) ::pause();
  }
}

[[noreturn]] void train(const FakeTrainer::Options& options, const Plan& plan, int ready, int go) {
  auto trainer = FakeTrainer::attach(options);
  end_if_failed(trainer);
  end_if_failed((*trainer)->await_peers());
  end_if_failed((*trainer)->hello());
  if (options.rank == 0) end_if_failed((*trainer)->load(initial_values(plan.model())));
  end_if_failed((*trainer)->await_ready());
  char byte = 'r';
  if (::write(ready, &byte, 1) != 1 || ::read(go, &byte, 1) != 1) ::_exit(1);
  for (uint32_t step = 1; step <= kSteps; ++step) {
    if (plan.immediate != 0 || plan.early()) (*trainer)->open(plan.record(step));
    for (uint32_t round = 1; round <= plan.accumulate; ++round) {
      publish(**trainer, plan, options.rank, step, round);
    }
    (*trainer)->post(plan.record(step));
    if (plan.swing_chunks == 0) continue;
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

// The states of a job, over all its ranks; and what elixird and the trainers say of them.
class JobMemory {
 public:
  JobMemory(const Plan& plan, const Trainer& rank0, const Trainer& rank1) : model_(plan.model()) {
    const shm::Shape& shape = model_.shape;
    // Each rank has its own control, and the params and states of both.
    map(rank0.memory("elixir-control"), shape.control_bytes(), &control_);
    map(rank1.memory("elixir-control"), shape.control_bytes(), &control_);
    map(rank0.memory("elixir-params"), shape.params_bytes(), &params_);
    map(rank0.memory("elixir-state"), shape.state_bytes(), &state_);
    if (shape.n_swing_chunks > 0) {
      map(rank0.memory("elixir-swing"), shape.swing_bytes(), &swing_);
      EXPECT_EQ(swing_.size(), 2u);
    }
    EXPECT_EQ(control_.size(), 2u);
    EXPECT_EQ(params_.size(), 2u);
    EXPECT_EQ(state_.size(), 2u);
  }

  const shm::ControlHeader& header(uint32_t rank) const {
    return *reinterpret_cast<const shm::ControlHeader*>(control_[rank].data());
  }
  void wait_for_the_end() const {
    ASSERT_TRUE(test::eventually([&] {
      return header(0).fault.load(std::memory_order_acquire) != 0;
    })) << "elixird has not ended the job";
  }
  uint32_t committed() const { return header(0).committed_step.load(); }
  // The last step that every rank has posted.
  uint32_t posted() const {
    return std::min(header(0).posted_step.load(), header(1).posted_step.load());
  }
  // Chunks whose gradients of the step after it some rank had published.
  uint32_t published_since() const {
    uint32_t count = 0;
    for (const shm::Segment& control : control_) {
      const auto* records = reinterpret_cast<const shm::GradRecord*>(
          control.data() + model_.shape.grad_records_offset());
      for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
        count += records[chunk].grad_step.load() > committed();
      }
    }
    return count;
  }

  // Updates of swing chunks of the last step that no trainer has said to have made.
  uint32_t swings_taken_over() const {
    const shm::Shape& shape = model_.shape;
    uint32_t count = 0;
    for (const shm::Segment& control : control_) {
      const auto* records =
          reinterpret_cast<const shm::SwingRecord*>(control.data() + shape.swing_records_offset());
      for (uint32_t i = 0; i < shape.n_swing_chunks; ++i) {
        count += records[i].step.load() < committed();
      }
    }
    return count;
  }

  // What elixird said to have updated in the last step; and what it had to: chunks that do not
  // swing, and shards of the others that no trainer has said to have updated.
  uint64_t updated_numel() const {
    const auto* results = reinterpret_cast<const shm::UpdateResult*>(
        control_[0].data() + model_.shape.update_results_offset());
    return results[committed() % shm::kStepRing].updated_numel;
  }
  uint64_t numel_to_update() const {
    const shm::Shape& shape = model_.shape;
    uint64_t numel = 0;
    for (const shm::ParameterPlace& place : model_.places) {
      for (uint32_t rank = 0; rank < shape.ranks; ++rank) {
        const auto* records = reinterpret_cast<const shm::SwingRecord*>(
            control_[rank].data() + shape.swing_records_offset());
        const bool made = shape.swings(place.chunk) &&
                          records[place.chunk - shape.first_swing()].step.load() == committed();
        const uint64_t begin = std::max(place.offset, shape.shard_begin(rank));
        const uint64_t end = std::min(place.offset + place.numel, shape.shard_end(rank));
        if (!made && begin < end) numel += end - begin;
      }
    }
    return numel;
  }

  uint64_t digest() const;

 private:
  uint32_t slot(uint32_t chunk) const {
    const auto* records = reinterpret_cast<const shm::ChunkRecord*>(
        control_[0].data() + model_.shape.chunk_records_offset());
    return records[chunk].slot.load();
  }
  static void map(std::vector<UniqueFd> fds, uint64_t bytes, std::vector<shm::Segment>* into) {
    for (UniqueFd& fd : fds) {
      Result<shm::Segment> segment =
          shm::Segment::map(std::move(fd), bytes, shm::Access::kReadOnly);
      ASSERT_TRUE(segment.ok()) << segment.status().message();
      into->push_back(std::move(*segment));
    }
  }

  FakeModel model_;
  std::vector<shm::Segment> control_, params_, state_, swing_;
};

struct ChunkStates {
  std::vector<float> masters, exp_avg, exp_avg_sq;
  std::vector<std::byte> params;
};

// Of the parameters alone: what lies between them is nobody's.
void append(const FakeModel& model, uint32_t chunk, const ChunkStates& states,
            std::vector<std::byte>* out) {
  const uint64_t element = element_bytes(model.shape.type);
  for (const shm::ParameterPlace& place : model.places) {
    if (place.chunk != chunk) continue;
    const auto add = [&](const auto& values, uint64_t unit) {
      const auto* first = reinterpret_cast<const std::byte*>(values.data() + place.offset * unit);
      out->insert(out->end(), first, first + place.numel * unit * sizeof values[0]);
    };
    add(states.masters, 1);
    add(states.exp_avg, 1);
    add(states.exp_avg_sq, 1);
    add(states.params, element);
  }
}

uint64_t JobMemory::digest() const {
  const shm::Shape& shape = model_.shape;
  std::vector<std::byte> bytes;
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
    ChunkStates whole;
    whole.masters.resize(shape.chunk_numel);
    whole.exp_avg.resize(shape.chunk_numel);
    whole.exp_avg_sq.resize(shape.chunk_numel);
    whole.params.resize(shape.chunk_bytes());
    for (uint32_t rank = 0; rank < 2; ++rank) {
      const uint64_t begin = shape.shard_begin(rank), numel = shape.shard_end(rank) - begin;
      const uint64_t index = slot(chunk) * shape.shard_numel();
      const bool swings = shape.swings(chunk);
      const std::byte* const image =
          swings ? swing_[rank].data() + shape.swing_slot_offset(slot(chunk)) : nullptr;
      const std::byte* const param =
          swings ? image : params_[rank].data() + shape.param_slot_offset(slot(chunk));
      const std::byte* const state = state_[rank].data();
      const auto moment = [&](uint32_t i) {
        return swings ? image + shape.image_moment_offset(i)
                      : state + shape.moment_offset(i) + index * sizeof(float);
      };
      optim::read_master(shape.type, param,
                         swings ? image + shape.image_master_offset()
                                : state + shape.master_offset() + index * master_bytes(shape.type),
                         numel, whole.masters.data() + begin);
      std::memcpy(whole.params.data() + begin * element_bytes(shape.type), param,
                  numel * element_bytes(shape.type));
      std::memcpy(whole.exp_avg.data() + begin, moment(0), numel * sizeof(float));
      std::memcpy(whole.exp_avg_sq.data() + begin, moment(1), numel * sizeof(float));
    }
    append(model_, chunk, whole, &bytes);
  }
  return shm::table_xxh64(bytes);
}

// Digests of the states after every step, computed by the scalar kernel as far as they are asked
// for.
class Expected {
 public:
  explicit Expected(const Plan& plan) : plan_(plan), model_(plan.model()), reference_(model_) {
    keep();
  }
  uint64_t after(uint32_t step) {
    while (digests_.size() <= step) {
      reference_.step(plan_.record(static_cast<uint32_t>(digests_.size())), plan_.accumulate);
      keep();
    }
    return digests_[step];
  }

 private:
  void keep() {
    std::vector<std::byte> bytes;
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      append(model_, chunk,
             {reference_.masters(chunk), reference_.exp_avg(chunk), reference_.exp_avg_sq(chunk),
              reference_.param(chunk)},
             &bytes);
    }
    digests_.push_back(shm::table_xxh64(bytes));
  }

  const Plan plan_;
  const FakeModel model_;
  Reference reference_;
  std::vector<uint64_t> digests_;
};

class Commit : public ::testing::Test {
 protected:
  Commit() {
    const char* const text = std::getenv("ELIXIR_TEST_SEED");
    seed_ = text != nullptr ? std::strtoull(text, nullptr, 0) : std::random_device()();
    random_.seed(seed_);
    std::printf("ELIXIR_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed_));
  }

  struct Run {
    std::unique_ptr<Trainer> ranks[2];
    std::unique_ptr<JobMemory> memory;
  };
  // Both ranks attached and loaded; they train from start() on.
  Run begin(const Plan& plan) {
    Run run;
    const FakeModel model = plan.model();
    for (uint32_t rank = 0; rank < 2; ++rank) {
      run.ranks[rank] = std::make_unique<Trainer>(
          FakeTrainer::Options{.folder = daemon_.folder(),
                               .job = fmt::format("{}-{}", plan.name, jobs_),
                               .rank = rank,
                               .shape = model.shape,
                               .places = model.places,
                               .accumulate = plan.accumulate,
                               .immediate = plan.immediate,
                               .norms = plan.norms,
                               .early = plan.early() ? 1u : 0u},
          plan);
    }
    ++jobs_;
    for (auto& rank : run.ranks) EXPECT_TRUE(rank->wait_ready());
    run.memory = std::make_unique<JobMemory>(plan, *run.ranks[0], *run.ranks[1]);
    return run;
  }

  // How long the first steps take here and now, in microseconds, the least of three: instants
  // within that time hit steps on a machine of any speed.
  uint64_t time_of_steps_us(const Plan& plan, uint32_t steps) {
    int64_t least_ns = std::numeric_limits<int64_t>::max();
    for (int i = 0; i < 3; ++i) {
      Run run = begin(plan);
      const int64_t start_ns = monotonic_ns();
      for (auto& rank : run.ranks) rank->start();
      EXPECT_TRUE(test::eventually([&] { return run.memory->committed() >= steps; }));
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
  constexpr int kShare = kSanitized ? 5 : 1;
  struct Runs : Plan {
    int number;
  };
  const Runs plans[] = {
      {{"plain", ComputeType::kFp32, 1, 0, 0, 0}, 20},
      {{"clipped", ComputeType::kBf16, 1, 1, 0, 100}, 20},
      {{"rounds", ComputeType::kBf16, 2, 1, 0, 100}, 20},
      {{"early", ComputeType::kBf16, 1, 1, 0, 100, 0, kChunks}, 200 / kShare},
      {{"early-rounds", ComputeType::kFp16, 2, 1, 0, 100, 0, 2}, 100 / kShare},
      {{"swing", ComputeType::kBf16, 1, 1, 0, 100, 0, 0, 3, 2}, 200 / kShare},
      {{"swing-rounds", ComputeType::kFp32, 2, 0, 0, 0, 0, 0, kChunks, 2}, 50 / kShare},
      {{"swing-early", ComputeType::kFp16, 1, 1, 0, 100, 0, 1, 2, 1}, 50 / kShare},
  };
  for (const Runs& plan : plans) {
    Expected expected(plan);
    uint32_t within = 0, steps = 0, taken_over = 0;
    const uint64_t longest_us = time_of_steps_us(plan, 6);
    // Where a kill lands is chance: a few runs may all miss what is to be hit, many do not.
    const auto hit = [&] {
      return within > 0 && steps > 0 && (plan.swing_chunks == 0 || taken_over > 0);
    };
    int number = 0;
    for (; number < plan.number || (!hit() && number < 20 * plan.number); ++number) {
      Run run = begin(plan);
      const auto delay = std::chrono::microseconds(random_() % longest_us);
      const uint64_t victims = 1 + random_() % 3;  // one, the other, both
      for (auto& rank : run.ranks) rank->start();
      std::this_thread::sleep_for(delay);
      for (uint32_t rank = 0; rank < 2; ++rank) {
        if ((victims >> rank & 1) != 0) run.ranks[rank]->kill();
      }
      run.memory->wait_for_the_end();
      const uint32_t committed = run.memory->committed();
      SCOPED_TRACE(fmt::format("{} {}: seed {}, after {} us, victims {}, step {}", plan.name,
                               number, seed_, delay.count(), victims, committed));
      EXPECT_EQ(run.memory->digest(), expected.after(committed));
      EXPECT_EQ(run.memory->header(0).finished_step.load(), committed);
      // What both had posted before the first death is promised; one may have posted since.
      EXPECT_GE(run.memory->posted(), committed);
      within += run.memory->published_since() > 0;
      taken_over += run.memory->swings_taken_over();
      steps += committed;
      ASSERT_TRUE(daemon_.running()) << daemon_.log();
    }
    std::printf("%s: %u steps in %d runs, %u of them killed within a step\n", plan.name, steps,
                number, within);
    if (plan.swing_chunks > 0) {
      std::printf("%s: %u swing updates taken over\n", plan.name, taken_over);
      EXPECT_GT(taken_over, 0u) << "no kill has left one undone";
    }
    EXPECT_GT(within, 0u) << "no kill has hit anything";
    EXPECT_GT(steps, 0u);
  }
}

// Wherever in an update: elixird makes it, from the states and gradients that it was of.
TEST_F(Commit, WhoDiesInTheMidstOfASwingUpdateLeavesAStep) {
  for (const FakeTrainer::SwingPoint point : FakeTrainer::kSwingPoints) {
    for (uint32_t chunk = 1; chunk < kChunks; ++chunk) {
      Plan plan{"swing-point", ComputeType::kBf16, 1, 0, 0, 0, /*die_in_step=*/4};
      plan.swing_chunks = kChunks - 1;
      plan.swing_lanes = 2;
      plan.die_at = point;
      plan.die_in_chunk = chunk;
      SCOPED_TRACE(fmt::format("at point {} of chunk {}", static_cast<int>(point), chunk));
      Expected expected(plan);
      Run run = begin(plan);
      for (auto& rank : run.ranks) rank->start();
      run.ranks[0]->reap();  // it kills itself
      run.memory->wait_for_the_end();
      EXPECT_EQ(run.memory->committed(), 4u);
      EXPECT_EQ(run.memory->header(0).finished_step.load(), 4u);
      EXPECT_EQ(run.memory->digest(), expected.after(4));
      // More where the rank has died before elixird saw what it said.
      EXPECT_GE(run.memory->updated_numel(), run.memory->numel_to_update());
      EXPECT_LE(run.memory->updated_numel(), shm::total_numel(plan.model().places));
    }
  }
}

// The digests can tell: states between two steps are no step's.
TEST_F(Commit, ImmediateUpdatesAreNoCommit) {
  const Plan immediate{"immediate", ComputeType::kBf16, 1, 0, 1, 0, /*die_in_step=*/5};
  Plan deferred = immediate;
  deferred.name = "deferred";
  deferred.immediate = 0;
  deferred.norms = 1;
  Plan early = deferred;
  early.name = "early";
  early.spare_slots = kChunks;
  for (const Plan& plan : {immediate, deferred, early}) {
    SCOPED_TRACE(plan.name);
    Expected expected(plan);
    Run run = begin(plan);
    for (auto& rank : run.ranks) rank->start();
    run.ranks[0]->reap();  // it kills itself
    run.memory->wait_for_the_end();
    EXPECT_GT(run.memory->published_since(), 0u);
    const uint64_t digest = run.memory->digest();
    if (plan.immediate == 0) {
      EXPECT_EQ(run.memory->committed(), 4u);
      EXPECT_EQ(digest, expected.after(4));
      continue;
    }
    // The dead rank waited for chunks of step 5, not for its peer's posts.
    EXPECT_LE(run.memory->committed(), 4u);
    for (uint32_t step = 0; step <= 5; ++step) EXPECT_NE(digest, expected.after(step)) << step;
  }
}

}  // namespace
}  // namespace elixir::testing
