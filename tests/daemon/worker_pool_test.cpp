#include "daemon/worker_pool.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstring>

#include "tests/daemon/bench.h"

namespace elixir::daemon {
namespace {

using testing::Bench;

class Pool {
 public:
  explicit Pool(const std::vector<uint32_t>& threads) {
    std::vector<NodeThreads> groups;
    for (const uint32_t count : threads) groups.push_back({0, {0}, count});
    groups_ = groups;
    pool_ = std::make_unique<WorkerPool>(groups, done_.get(), /*most_works=*/64);
  }
  void submit(Bench& bench) {
    bench.begin_step();
    pool_->submit(bench.work.get());
  }
  // Waits until some work is done.
  std::vector<JobWork*> wait() {
    for (;;) {
      std::vector<JobWork*> done;
      while (JobWork* const work = pool_->take_done()) done.push_back(work);
      if (!done.empty()) return done;
      pollfd entry{done_.get(), POLLIN, 0};
      EXPECT_EQ(::poll(&entry, 1, 60'000), 1) << "no work was done";
      uint64_t count;
      EXPECT_EQ(::read(done_.get(), &count, sizeof count), ssize_t{sizeof count});
    }
  }

 private:
  UniqueFd done_{::eventfd(0, EFD_CLOEXEC)};
  std::vector<NodeThreads> groups_;
  std::unique_ptr<WorkerPool> pool_;
};

TEST(WorkerPool, AShortWorkDoesNotWaitForALongOne) {
  Bench long_bench(1, 128 * 16 * 1024, {1}), short_bench(1, 128, {1});
  Pool pool({1});
  pool.submit(long_bench);
  pool.submit(short_bench);
  EXPECT_EQ(pool.wait(), std::vector<JobWork*>{short_bench.work.get()});
  EXPECT_GT(long_bench.work->chunks_left(), 0u);
  EXPECT_EQ(pool.wait(), std::vector<JobWork*>{long_bench.work.get()});
}

TEST(WorkerPool, ManyStepsOfManyJobsAreEachDoneOnce) {
  constexpr uint32_t kSteps = 60;
  const std::vector<uint32_t> threads = {2, 2};
  std::vector<std::unique_ptr<Bench>> benches;
  for (uint32_t ranks = 1; ranks <= 3; ++ranks) {
    benches.push_back(std::make_unique<Bench>(ranks, 128 * (4 + ranks), threads));
  }
  Pool pool(threads);
  for (auto& bench : benches) pool.submit(*bench);
  for (size_t left = benches.size() * kSteps; left > 0;) {
    for (JobWork* work : pool.wait()) {
      --left;
      EXPECT_EQ(work->chunks_left(), 0u);
      for (auto& bench : benches) {
        if (bench->work.get() != work) continue;
        for (const auto& memory : bench->memory) {
          EXPECT_EQ(memory->header().finished_step.load(), bench->steps);
          for (uint32_t chunk = 0; chunk < 3; ++chunk) {
            EXPECT_EQ(memory->chunk_record(chunk).param_step.load(), bench->steps);
          }
        }
        if (bench->steps < kSteps) pool.submit(*bench);
      }
    }
  }
  // Every slice of every step, exactly once: the bits of one thread doing it alone.
  for (auto& bench : benches) {
    ASSERT_EQ(bench->steps, kSteps);
    const auto ranks = static_cast<uint32_t>(bench->memory.size());
    Bench alone(ranks, bench->model.shape.chunk_numel, {1});
    while (alone.steps < kSteps) {
      alone.begin_step();
      while (alone.work->run_slice(0, 0)) {
      }
    }
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(std::memcmp(alone.memory[rank]->params().data(),
                            bench->memory[rank]->params().data(), alone.model.shape.params_bytes()),
                0);
    }
  }
}

TEST(WorkerPool, AThreadLimitLeavesGroupsOut) {
  Bench bench(3, 128 * 5, {1, 0});
  Pool pool({2, 2});
  for (int step = 0; step < 20; ++step) {
    pool.submit(bench);
    EXPECT_EQ(pool.wait(), std::vector<JobWork*>{bench.work.get()});
  }
  // The redo records of the second group's workers, the odd ones, were never written.
  for (const auto& memory : bench.memory) {
    const optim::RedoRecord empty{};
    bool used[4] = {};
    for (uint32_t worker = 0; worker < 4; ++worker) {
      used[worker] = std::memcmp(memory->redo(worker), &empty, sizeof empty) != 0;
    }
    EXPECT_TRUE(used[0] || used[2]);
    EXPECT_FALSE(used[1] || used[3]);
  }
}

TEST(WorkerPool, StopsWithWorkAtHand) {
  Bench bench(1, 128 * 1000, {2});
  Pool pool({2});
  pool.submit(bench);  // and goes away
}

}  // namespace
}  // namespace elixir::daemon
