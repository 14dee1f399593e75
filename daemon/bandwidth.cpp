#include "daemon/bandwidth.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/units.h"

namespace elixir::daemon {
namespace {

constexpr uint64_t kBufferBytes = 192ull << 20;  // the caches of one node are smaller
constexpr int kPasses = 2;                       // the better one counts
constexpr double kLeastGain = 1.03;
constexpr double kMaxSeconds = 0.4;

// 64 bytes at once: the compiler makes of it what every x86-64 has.
using Vector = uint64_t __attribute__((vector_size(64)));

void change_in_place(Vector* data, uint64_t count) {
  const Vector one = {1, 1, 1, 1, 1, 1, 1, 1};
  for (uint64_t i = 0; i < count; ++i) data[i] += one;
}

// Runs `work(thread)` on threads bound to the node, all starting together; seconds of the slowest.
template <typename Work>
double run_together(const NodeCpus& node, uint32_t threads, const Work& work) {
  std::atomic<uint32_t> waiting{threads};
  std::vector<double> seconds(threads);
  std::vector<std::thread> pool;
  for (uint32_t i = 0; i < threads; ++i) {
    pool.emplace_back([&, i] {
      bind_this_thread(node.cpus);
      waiting.fetch_sub(1, std::memory_order_acq_rel);
      while (waiting.load(std::memory_order_acquire) > 0) std::this_thread::yield();
      const int64_t start_ns = monotonic_ns();
      work(i);
      seconds[i] = seconds_since(start_ns);
    });
  }
  for (std::thread& thread : pool) thread.join();
  return *std::max_element(seconds.begin(), seconds.end());
}

double pass_gb_s(const NodeCpus& node, Vector* data, uint32_t threads) {
  const uint64_t count = kBufferBytes / sizeof(Vector) / threads;
  const double seconds =
      run_together(node, threads, [&](uint32_t i) { change_in_place(data + i * count, count); });
  return 2e-9 * static_cast<double>(count * threads * sizeof(Vector)) / seconds;
}

}  // namespace

Bandwidth measure_bandwidth(const NodeCpus& node, uint32_t threads) {
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  const std::unique_ptr<void, Free> buffer(std::aligned_alloc(sizeof(Vector), kBufferBytes));
  if (buffer == nullptr) return {std::max(threads, 1u), 0};
  auto* data = static_cast<Vector*>(buffer.get());
  const auto cpus = static_cast<uint32_t>(node.cpus.size());
  const int64_t start_ns = monotonic_ns();
  pass_gb_s(node, data, cpus);  // first touch, by threads of the node

  Bandwidth best;
  for (uint32_t count = threads > 0 ? threads : 1;;) {
    Bandwidth now{count, 0};
    for (int pass = 0; pass < kPasses; ++pass) {
      now.gb_s = std::max(now.gb_s, pass_gb_s(node, data, count));
    }
    if (now.gb_s < best.gb_s * kLeastGain) break;
    best = now;
    if (threads > 0 || count >= cpus || seconds_since(start_ns) > kMaxSeconds) break;
    count = std::min(cpus, count + std::max(1u, count / 2));  // 1 2 3 4 6 9 13 19 28 ...
  }
  return best;
}

}  // namespace elixir::daemon
