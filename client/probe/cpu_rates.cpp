#include "client/probe/cpu_rates.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "base/host_memory.h"
#include "base/processors.h"
#include "base/units.h"
#include "client/probe/inplace.h"
#include "client/probe/thread_team.h"
#include "optim_cpu/adam.h"
#include "optim_cpu/master.h"

namespace elixir::probe {
namespace {

constexpr size_t kSliceNumel = 1 << 16;          // what a worker of elixird takes at a time
constexpr uint64_t kStateBytes = 2 + 2 + 4 + 4;  // parameter, master, both moments
// Arrays a power of two apart collide in the caches of some processors.
constexpr uint64_t kGapBytes = 17 * 4096;
constexpr uint64_t kLeastNumel = uint64_t{32} << 20;
// An H100's host with 300 MiB of them said 1.5 times its memory's rate of what was 1.5 times as
// large.
constexpr uint64_t kTimesTheCaches = 8;
constexpr uint64_t kArenaMultiple = uint64_t{1} << 20;

struct Unmap {
  size_t bytes = 0;
  void operator()(std::byte* memory) const { ::munmap(memory, bytes); }
};
using Arena = std::unique_ptr<std::byte, Unmap>;

// One job: gradients of every trainer, and states.
class Job {
 public:
  Job(Arena arena, uint64_t numel, uint32_t trainers)
      : arena_(std::move(arena)), slices_(numel / kSliceNumel) {
    std::byte* next = arena_.get();
    const auto take = [&next, numel](uint64_t param_bytes) {
      return std::exchange(next, next + param_bytes * numel + kGapBytes);
    };
    for (uint32_t i = 0; i < trainers; ++i) grads_.push_back(take(2));
    param_ = take(2);
    master_ = take(2);
    for (float*& moment : moments_) moment = reinterpret_cast<float*>(take(sizeof(float)));
  }

  static uint64_t bytes(uint64_t numel, uint32_t trainers) {
    return round_up((kStateBytes + 2 * trainers) * numel + (trainers + 4) * kGapBytes,
                    kArenaMultiple);
  }

  // Plausible values everywhere, by the threads that will work on them.
  void fill(ThreadTeam& team) {
    std::vector<float> values(kSliceNumel);
    for (size_t i = 0; i < kSliceNumel; ++i) {
      const auto mixed = static_cast<int>(i * 2654435761U >> 16 & 0xffff) - 0x8000;
      values[i] = static_cast<float>(mixed) * (0.1f / 0x8000);
    }
    std::vector<uint16_t> param(kSliceNumel), master(kSliceNumel);
    optim::load_master(ComputeType::kBf16, values.data(), kSliceNumel, param.data(), master.data());
    by_slices(team, [&](size_t at) {
      for (std::byte* grads : grads_) std::memcpy(grads + 2 * at, param.data(), 2 * kSliceNumel);
      std::memcpy(param_ + 2 * at, param.data(), 2 * kSliceNumel);
      std::memcpy(master_ + 2 * at, master.data(), 2 * kSliceNumel);
      for (float* moment : moments_) std::memset(moment + at, 0, sizeof(float) * kSliceNumel);
    });
  }

  double update_gparam_s(ThreadTeam& team, uint32_t trainers) {
    const optim::AdamStep step = optim::make_adam_step({}, 100, 1);
    const double seconds = by_slices(team, [&](size_t at) {
      const void* grads[optim::kMaxGrads];
      for (uint32_t i = 0; i < trainers; ++i) grads[i] = grads_[i] + 2 * at;
      const optim::UpdateSpan span{.type = ComputeType::kBf16,
                                   .n_grads = static_cast<int>(trainers),
                                   .grads = grads,
                                   .param = param_ + 2 * at,
                                   .master = master_ + 2 * at,
                                   .moments = {moments_[0] + at, moments_[1] + at},
                                   .numel = kSliceNumel};
      optim::adam_update(optim::best_isa(), span, step);
    });
    return 1e-9 * static_cast<double>(slices_ * kSliceNumel) / seconds;
  }

  double inplace_gb_s(ThreadTeam& team, const InplaceLoop& loop) {
    const std::span<uint64_t> words(reinterpret_cast<uint64_t*>(arena_.get()),
                                    arena_.get_deleter().bytes / sizeof(uint64_t));
    const size_t parts = words.size() / kSliceNumel;
    const auto n = static_cast<size_t>(team.threads());
    const double seconds = team.time([&](int thread) {
      const auto i = static_cast<size_t>(thread);
      const size_t first = parts * i / n * kSliceNumel;
      const size_t last = parts * (i + 1) / n * kSliceNumel;
      loop.run(words.data() + first, last - first, 0);
    });
    return 2e-9 * static_cast<double>(words.size_bytes()) / seconds;
  }

 private:
  // Threads take slices as they come, as elixird's workers do. Seconds that all of them took.
  template <typename Work>
  double by_slices(ThreadTeam& team, const Work& work) {
    std::atomic<size_t> next{0};
    return team.time([&](int) {
      for (;;) {
        // Counts and orders nothing: the memory was written before the threads began.
        const size_t slice = next.fetch_add(1, std::memory_order_relaxed);
        if (slice >= slices_) return;
        work(slice * kSliceNumel);
      }
    });
  }

  Arena arena_;
  size_t slices_;
  std::vector<std::byte*> grads_;
  std::byte* param_;
  std::byte* master_;
  float* moments_[kMaxMoments];
};

Result<Arena> map_shared(uint64_t bytes) {
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return errno_status(Code::kResourceExhausted,
                        fmt::format("{} of shared memory to measure", format_bytes(bytes)));
  }
  return Arena(static_cast<std::byte*>(memory), Unmap{bytes});
}

}  // namespace

Result<CpuRates> measure_cpu(const CpuRateOptions& options) {
  const uint32_t most = *std::max_element(options.trainers.begin(), options.trainers.end());
  const std::vector<int> processors = usable_processors();
  const auto threads = static_cast<int>(processors.size());
  const uint64_t asked =
      options.numel != 0
          ? options.numel
          : std::max(kLeastNumel,
                     kTimesTheCaches * last_level_cache_bytes(processors) / (kStateBytes + 2));
  const MemoryRoom room = memory_room();
  const uint64_t fits = room.available_bytes / 16 / (kStateBytes + 2 * most);
  CpuRates rates;
  rates.numel = std::min(asked, fits) / kSliceNumel * kSliceNumel;
  if (rates.numel < 4 * kSliceNumel) {
    return error(Code::kResourceExhausted,
                 "{} are available ({}), too little to measure the update with {} trainers; end "
                 "other programs or raise the limit",
                 format_bytes(room.available_bytes), room.limit, most);
  }
  Result<Arena> arena = map_shared(Job::bytes(rates.numel, most));
  if (!arena.ok()) return arena.status();
  ThreadTeam team(threads);
  Job job(std::move(*arena), rates.numel, most);
  job.fill(team);

  const std::vector<InplaceLoop> loops = inplace_loops();
  rates.update_gparam_s.resize(options.trainers.size());
  for (int round = 0; round < options.rounds; ++round) {
    for (const InplaceLoop& loop : loops) {
      rates.dram_gb_s = std::max(rates.dram_gb_s, job.inplace_gb_s(team, loop));
    }
    for (size_t i = 0; i < options.trainers.size(); ++i) {
      double& rate = rates.update_gparam_s[i];
      rate = std::max(rate, job.update_gparam_s(team, options.trainers[i]));
    }
  }
  return rates;
}

}  // namespace elixir::probe
