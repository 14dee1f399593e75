// Every word that a trainer sleeps on is followed by a wake. Trainers wait in short slices, so that
// they notice a death; one that is never woken only gets slower.

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "shm/futex.h"
#include "tests/daemon/job_fixture.h"
#include "tests/support/patience.h"

namespace elixir::daemon {
namespace {

using namespace testing;

constexpr int64_t kLongNs = 10'000'000'000;

// A thread that sleeps on a word until it is woken. Constructed, it is asleep.
class Sleeper {
 public:
  // `also`: another count of sleepers, or null.
  Sleeper(std::string name, const std::atomic<uint32_t>& word, std::atomic<uint32_t>& waiters,
          std::atomic<uint32_t>* also = nullptr)
      : name_(std::move(name)) {
    thread_ = std::thread([this, &word, &waiters, also, seen = word.load()] {
      const shm::Waiter counted(waiters);
      std::optional<shm::Waiter> counted_too;
      if (also != nullptr) counted_too.emplace(*also);
      id_.store(::gettid());
      too_long_ = shm::futex_wait(word, seen, kLongNs);
      changed_ = word.load() != seen;
    });
    EXPECT_TRUE(test::eventually([&] { return id_ != 0 && test::asleep(id_); })) << name_;
  }
  ~Sleeper() {
    thread_.join();
    EXPECT_TRUE(changed_) << name_ << " did not change";
    EXPECT_FALSE(too_long_) << name_ << " changed and nobody woke who slept on it";
  }

 private:
  const std::string name_;
  std::atomic<pid_t> id_ = 0;
  bool too_long_ = false, changed_ = false;
  std::thread thread_;
};

// On a word of every rank's header, or of every chunk of every rank.
class Sleepers {
 public:
  explicit Sleepers(InProcessJob& world) : world_(world) {}
  void on(const char* name, std::atomic<uint32_t> shm::ControlHeader::*word) {
    for (uint32_t rank = 0; rank < world_.model.shape.ranks; ++rank) {
      shm::ControlHeader& header = world_.header(rank);
      all_.push_back(std::make_unique<Sleeper>(name, header.*word, header.waiters));
    }
  }
  // A skipped step moves the param_step of those chunks alone on which somebody sleeps, who counts
  // himself in param_waiters, too.
  void on(const char* name, std::atomic<uint32_t> shm::ChunkRecord::*word,
          std::atomic<uint32_t> shm::ControlHeader::*also = nullptr) {
    for (uint32_t rank = 0; rank < world_.model.shape.ranks; ++rank) {
      for (uint32_t chunk = 0; chunk < world_.model.shape.n_chunks; ++chunk) {
        shm::ChunkRecord& record = world_.rank(rank).memory->chunk_record(chunk);
        auto* const too = also == nullptr ? nullptr : &(world_.header(rank).*also);
        all_.push_back(std::make_unique<Sleeper>(name, record.*word, record.waiters, too));
      }
    }
  }
  void expect_woken() { all_.clear(); }

 private:
  InProcessJob& world_;
  std::vector<std::unique_ptr<Sleeper>> all_;
};

TEST(Wakes, ALoadThatIsTaken) {
  InProcessJob world({});
  world.attach();
  shm::ChunkRecord& record = world.rank(0).memory->chunk_record(0);
  Sleeper sleeper("loads_taken", record.loads_taken, record.waiters);
  shm::LoadChunk message{};
  ASSERT_TRUE(world.job.load_chunk(world.rank(0), message).ok());
  world.run_workers();
}

TEST(Wakes, AStep) {
  InProcessJob world({});
  world.start();
  Sleepers sleepers(world);
  sleepers.on("committed_step", &shm::ControlHeader::committed_step);
  for (uint32_t rank = 0; rank < 2; ++rank) world.write_grads(rank, 1);
  for (uint32_t rank = 0; rank < 2; ++rank) world.post(rank, 1);
  sleepers.expect_woken();
  sleepers.on("param_step", &shm::ChunkRecord::param_step);
  sleepers.on("finished_step", &shm::ControlHeader::finished_step);
  world.run_workers();
  sleepers.expect_woken();
}

TEST(Wakes, AGradientThatIsTaken) {
  InProcessJob world({.accumulate = 2});
  world.start();
  Sleepers sleepers(world);
  sleepers.on("grad_taken", &shm::ChunkRecord::grad_taken);
  for (uint32_t rank = 0; rank < 2; ++rank) ASSERT_TRUE(world.publish(rank, 1).ok());
  world.run_workers();
  sleepers.expect_woken();
}

// Whether or not others sleep on other words of a chunk: they count in the same `waiters`, and a
// skipped step has nothing for them.
TEST(Wakes, AStepThatIsSkipped) {
  for (const bool others : {false, true}) {
    InProcessJob::Options options{.norms = true};
    options.model.poison_step = 1;
    InProcessJob world(std::move(options));
    world.start();
    shm::StepRecord record = make_record(1, 2);
    record.check_finite = 1;
    std::vector<std::unique_ptr<shm::Waiter>> on_other_words;
    for (uint32_t rank = 0; others && rank < 2; ++rank) {
      for (int i = 0; i < 2; ++i) {
        shm::ChunkRecord& first = world.rank(rank).memory->chunk_record(0);
        on_other_words.push_back(std::make_unique<shm::Waiter>(first.waiters));
      }
    }
    Sleepers sleepers(world);
    sleepers.on("committed_step", &shm::ControlHeader::committed_step);
    sleepers.on("param_step", &shm::ChunkRecord::param_step, &shm::ControlHeader::param_waiters);
    sleepers.on("finished_step", &shm::ControlHeader::finished_step);
    for (uint32_t rank = 0; rank < 2; ++rank) world.write_grads(rank, 1);
    for (uint32_t rank = 0; rank < 2; ++rank) world.post(rank, record);
    world.run_workers();
    sleepers.expect_woken();
    EXPECT_EQ(world.job.statistics().skipped, 1u);
  }
}

}  // namespace
}  // namespace elixir::daemon
