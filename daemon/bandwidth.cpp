#include "daemon/bandwidth.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/units.h"

namespace elixir::daemon {
namespace {

// Larger than the caches of one node: no server has more than 4 MiB of them a processor.
constexpr uint64_t kLeastBufferBytes = 192ull << 20;
constexpr uint64_t kBufferBytesPerCpu = 12ull << 20;
constexpr int kPasses = 3;  // the best one counts: anything else that runs only takes away
constexpr uint64_t kPieceNumel = 16 * 1024;  // Vectors: 1 MiB
constexpr double kLeastGain = 1.03;
constexpr double kMaxSeconds = 0.4;

// 64 bytes at once: the compiler makes of it what every x86-64 has.
using Vector = uint64_t __attribute__((vector_size(64)));

void change_in_place(Vector* data, uint64_t count) {
  const Vector one = {1, 1, 1, 1, 1, 1, 1, 1};
  for (uint64_t i = 0; i < count; ++i) data[i] += one;
}

// One pass over the buffer. Threads take pieces as they come, as workers take slices: one that is
// held up by another process does not hold up the rest.
double pass_gb_s(const NodeCpus& node, std::span<Vector> data, uint32_t threads) {
  std::atomic<uint64_t> next{0};
  std::atomic<uint32_t> waiting{threads};
  std::atomic<int64_t> start_ns{0};
  const auto work = [&] {
    bind_this_thread(node.cpus);
    if (waiting.fetch_sub(1, std::memory_order_acq_rel) == 1) start_ns = monotonic_ns();
    while (waiting.load(std::memory_order_acquire) > 0) std::this_thread::yield();
    for (;;) {
      const uint64_t at = next.fetch_add(kPieceNumel, std::memory_order_relaxed);
      if (at >= data.size()) return;
      change_in_place(data.data() + at, std::min(kPieceNumel, data.size() - at));
    }
  };
  std::vector<std::thread> pool;
  for (uint32_t i = 0; i < threads; ++i) pool.emplace_back(work);
  for (std::thread& thread : pool) thread.join();
  return 2e-9 * static_cast<double>(data.size_bytes()) / seconds_since(start_ns);
}

double best_gb_s(const NodeCpus& node, std::span<Vector> data, uint32_t threads) {
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) best = std::max(best, pass_gb_s(node, data, threads));
  return best;
}

}  // namespace

Bandwidth measure_bandwidth(const NodeCpus& node, uint32_t threads, uint64_t spare_bytes) {
  const auto cpus = static_cast<uint32_t>(node.cpus.size());
  const uint64_t bytes = std::max(kLeastBufferBytes, cpus * kBufferBytesPerCpu);
  if (bytes > spare_bytes) {
    log_warn("no_bandwidth_probe", "needs='{}' spare='{}'", format_bytes(bytes),
             format_bytes(spare_bytes));
    return {threads > 0 ? threads : cpus, 0};
  }
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  const std::unique_ptr<void, Free> buffer(std::aligned_alloc(sizeof(Vector), bytes));
  if (buffer == nullptr) return {std::max(threads, 1u), 0};
  const std::span<Vector> data(static_cast<Vector*>(buffer.get()), bytes / sizeof(Vector));
  const int64_t start_ns = monotonic_ns();
  pass_gb_s(node, data, cpus);  // first touch, by threads of the node

  Bandwidth best;
  for (uint32_t count = threads > 0 ? threads : 1;;) {
    Bandwidth now{count, best_gb_s(node, data, count)};
    // A second look: a moment in which the machine was busy must not decide.
    if (now.gb_s < best.gb_s * kLeastGain) {
      now.gb_s = std::max(now.gb_s, best_gb_s(node, data, count));
    }
    if (now.gb_s < best.gb_s * kLeastGain) break;
    best = now;
    if (threads > 0 || count >= cpus || seconds_since(start_ns) > kMaxSeconds) break;
    count = std::min(cpus, count + std::max(1u, count / 2));  // 1 2 3 4 6 9 13 19 28 ...
  }
  return best;
}

}  // namespace elixir::daemon
