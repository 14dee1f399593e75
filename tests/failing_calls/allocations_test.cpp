// Functions of elixird's that run beside the jobs, in threads or with threads of their own:
// whichever of their allocations fails, they throw std::bad_alloc or do without it. What is
// noexcept in a library, and a thread that nobody joins, would end the process, and every job with
// it.

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <new>

#include "base/folder_names.h"
#include "base/spare_threads.h"
#include "daemon/background.h"
#include "daemon/bandwidth.h"
#include "daemon/neighbours.h"
#include "daemon/worker_pool.h"
#include "tests/failing_calls/planned_daemon.h"

namespace elixir::testing {
namespace {

constexpr uint64_t kAll = UINT64_MAX;

// The first, the second and so on, until a call in which none is left to fail, or `most`. How many
// failed.
uint64_t fail_each(const std::function<void()>& function, uint64_t most = kAll) {
  for (uint64_t at = 1;; ++at) {
    arm(&call_plan(), {Call::kAllocate, ENOMEM}, at);
    try {
      function();
    } catch (const std::bad_alloc&) {
    }
    const bool failed = call_plan().failed > 0;
    only_count(&call_plan());
    if (!failed || at == most) return failed ? at : at - 1;
  }
}

TEST(Allocations, OfAFoldersNames) {
  EXPECT_GT(fail_each([] { (void)folder_names("/proc"); }), 4u);
}

TEST(Allocations, OfALookAtTheNeighbours) {
  EXPECT_GT(fail_each([] { (void)daemon::neighbours(); }), 10u);
}

TEST(Allocations, OfThreadsThatAreTried) {
  EXPECT_GE(fail_each([] { (void)check_spare_threads(4); }), 4u);
}

TEST(Allocations, OfBackgroundThreads) {
  const UniqueFd done(::eventfd(0, EFD_CLOEXEC));
  EXPECT_GE(fail_each([&] {
              daemon::Background background({.threads = 3, .most_threads = 4}, done.get());
              for (int i = 0; i < 8; ++i) background.start([] {}, [] {});
              background.run_finished();
            }),
            8u);
}

TEST(Allocations, OfWorkers) {
  const UniqueFd done(::eventfd(0, EFD_CLOEXEC));
  const std::vector<daemon::NodeThreads> groups =
      daemon::spread_threads(daemon::allowed_nodes(), 3);
  EXPECT_GE(fail_each([&] { daemon::WorkerPool pool(groups, done.get(), 4); }), 8u);
}

// Those of its first passes; later ones are the same.
TEST(Allocations, OfAMeasurementOfTheBandwidth) {
  const std::atomic<bool> stop{false};
  const daemon::NodeCpus node = daemon::allowed_nodes()[0];
  const auto measure = [&] { (void)daemon::measure_bandwidth(node, 3, kAll, stop); };
  EXPECT_EQ(fail_each(measure, 6), 6u);
}

}  // namespace
}  // namespace elixir::testing
