#include "daemon/bandwidth.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/helper_threads.h"
#include "base/log.h"
#include "base/processors.h"
#include "base/units.h"
#include "optim_cpu/adam.h"

namespace elixir::daemon {
namespace {

// Larger than the caches of one node where these are 4 MiB a processor or less. An H100's host has
// 19 (docs/design/decisions.md).
constexpr uint64_t kLeastBufferBytes = 192ull << 20;
constexpr uint64_t kBufferBytesPerCpu = 12ull << 20;
constexpr int kPasses = 3;  // the best one counts: anything else that runs only takes away
constexpr uint64_t kPieceNumel = 16 * 1024;  // Vectors: 1 MiB
constexpr double kLeastGain = 1.03;
constexpr double kMaxSeconds = 0.4;

// 64 bytes at once: the compiler makes of it what every x86-64 has.
using Vector = uint64_t __attribute__((vector_size(64)));

using Change = void(Vector* data, uint64_t count);

void add_one(Vector* data, uint64_t count) {
  const Vector one = {1, 1, 1, 1, 1, 1, 1, 1};
  for (uint64_t i = 0; i < count; ++i) data[i] += one;
}

// What the workers will do: an FP32 step, the four arrays side by side in the piece.
void adam_step(Vector* data, uint64_t count) {
  const uint64_t numel = count * sizeof(Vector) / sizeof(float) / 4;
  auto* floats = reinterpret_cast<float*>(data);
  const void* grad = floats;
  optim::UpdateSpan span{};
  span.type = ComputeType::kFp32;
  span.grads = &grad;
  span.param = floats + numel;
  span.moments[0] = floats + 2 * numel;
  span.moments[1] = floats + 3 * numel;
  span.numel = numel;
  optim::adam_update(optim::best_isa(), span, optim::make_adam_step({}, 1, 1.0));
}

// One pass over the buffer. Threads take pieces as they come, as workers take slices: one that is
// held up by another process does not hold up the rest.
double pass_gb_s(const NodeCpus& node, std::span<Vector> data, uint32_t threads, Change* change) {
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
      change(data.data() + at, std::min(kPieceNumel, data.size() - at));
    }
  };
  HelperThreads pool;
  const auto started = static_cast<uint32_t>(pool.start(threads, work));
  if (started < threads) {  // measured with those that there are
    waiting.fetch_sub(threads - started, std::memory_order_acq_rel);
    if (start_ns == 0) start_ns = monotonic_ns();
    if (started == 0) return 0;
  }
  pool.join();
  return 2e-9 * static_cast<double>(data.size_bytes()) / seconds_since(start_ns);
}

double best_gb_s(const NodeCpus& node, std::span<Vector> data, uint32_t threads, Change* change) {
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    best = std::max(best, pass_gb_s(node, data, threads, change));
  }
  return best;
}

// Adds threads until one more step of them gains the update less than kLeastGain. By the update,
// not by the bandwidth alone: one thread may fill the memory bus with additions, but not with Adam.
uint32_t enough_threads(const NodeCpus& node, std::span<Vector> data,
                        const std::atomic<bool>& stop) {
  const int64_t start_ns = monotonic_ns();
  uint32_t enough = 1;
  double enough_gb_s = best_gb_s(node, data, 1, adam_step);
  for (uint32_t count = 1; count < node.most_threads && seconds_since(start_ns) < kMaxSeconds &&
                           !stop.load(std::memory_order_relaxed);) {
    count =
        std::min(node.most_threads, count + std::max(1u, count / 2));  // 1 2 3 4 6 9 13 19 28 ...
    double gb_s = best_gb_s(node, data, count, adam_step);
    // A second look: a moment in which the machine was busy must not decide.
    if (gb_s < enough_gb_s * kLeastGain) {
      gb_s = std::max(gb_s, best_gb_s(node, data, count, adam_step));
    }
    if (gb_s < enough_gb_s * kLeastGain) break;
    enough = count;
    enough_gb_s = gb_s;
  }
  return enough;
}

}  // namespace

Bandwidth measure_bandwidth(const NodeCpus& node, uint32_t threads, uint64_t spare_bytes,
                            const std::atomic<bool>& stop) {
  const auto cpus = static_cast<uint32_t>(node.cpus.size());
  const uint64_t bytes = std::max(kLeastBufferBytes, cpus * kBufferBytesPerCpu);
  if (bytes > spare_bytes) {
    log_warn("no_bandwidth_probe", "needs='{}' spare='{}'", format_bytes(bytes),
             format_bytes(spare_bytes));
    return {threads > 0 ? threads : node.most_threads, 0};
  }
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  const std::unique_ptr<void, Free> buffer(std::aligned_alloc(sizeof(Vector), bytes));
  if (buffer == nullptr) return {std::max(threads, 1u), 0};
  const std::span<Vector> data(static_cast<Vector*>(buffer.get()), bytes / sizeof(Vector));
  pass_gb_s(node, data, cpus, adam_step);  // first touch, by threads of the node

  const uint32_t chosen = threads > 0 ? threads : enough_threads(node, data, stop);
  const double gb_s = best_gb_s(node, data, chosen, add_one);
  return {chosen, stop.load(std::memory_order_relaxed) ? 0 : gb_s};
}

}  // namespace elixir::daemon
