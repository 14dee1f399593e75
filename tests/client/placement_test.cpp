// Plans with chunks placed on the GPU, on HostDevice, and the order of work on a device's streams.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "base/compute_type_names.h"
#include "base/throw_error.h"
#include "client/device/pinned_ranges.h"
#include "client/plan/run_plan.h"
#include "tests/client/lazy_device.h"
#include "tests/client/small_training.h"
#include "tests/client/with_elixird.h"

namespace elixir::test {
namespace {

using ::testing::HasSubstr;

class Placements : public WithElixird {};

TrainingPlan plan_of(uint32_t ranks, ComputeType dtype) {
  TrainingPlan plan;
  plan.ranks = ranks;
  plan.dtype = dtype;
  plan.batch = 2;
  plan.steps = 8;
  plan.chunk_numel = largest_parameter_numel();
  plan.rcache_blocks = 3;
  if (dtype == ComputeType::kFp16) plan.loss_scale = 256;
  return plan;
}

TEST_F(Placements, EverySharePlacedOnTheGpuGivesTheBitsOfNone) {
  for (const ComputeType dtype : {ComputeType::kFp32, ComputeType::kBf16, ComputeType::kFp16}) {
    for (const uint32_t ranks : {1u, 2u, 3u}) {
      TrainingPlan plan = plan_of(ranks, dtype);
      if (ranks > 1) plan.exchange = shm::Exchange::kCollective;
      const TrainingOutcome none = train_through_elixird(plan);
      EXPECT_EQ(none.plan.n_gpu_chunks, 0u);
      for (const double share : {0.1, 0.25, 0.5, 0.9, 1.0}) {
        SCOPED_TRACE(fmt::format("{} ranks, {}, share {}", ranks, compute_type_name(dtype), share));
        plan.gpu_state_share = share;
        const TrainingOutcome some = train_through_elixird(plan);
        EXPECT_GT(some.plan.n_gpu_chunks, 0u);
        expect_equal_bits(some, none);
      }
    }
  }
}

TEST_F(Placements, OneRankMovesNothingForChunksPlacedOnTheGpu) {
  TrainingPlan plan = plan_of(1, ComputeType::kFp32);
  const StepStats none = train_through_elixird(plan).stats;
  plan.gpu_state_share = 0.5;
  const TrainingOutcome half = train_through_elixird(plan);
  EXPECT_LT(half.stats.d2h_bytes, none.d2h_bytes);
  plan.gpu_state_share = 1;
  const TrainingOutcome all = train_through_elixird(plan);
  EXPECT_EQ(all.stats.h2d_bytes, 0u);
  EXPECT_EQ(all.stats.d2h_bytes, 0u);
  EXPECT_EQ(all.plan.rcache_blocks, 0u);
}

TEST_F(Placements, DroppedAndAddedGradientsCountAsInTorch) {
  for (const double share : {0.0, 0.5}) {
    for (const uint32_t ranks : {1u, 2u}) {
      TrainingPlan plan = plan_of(ranks, ComputeType::kFp32);
      plan.gpu_state_share = share;
      plan.exchange.reset();
      const TrainingOutcome plain = train_through_elixird(plan);
      plan.empty_backward = true;
      expect_equal_bits(train_through_elixird(plan), plain);
      // Twice the gradient: Adam divides it out but for eps. Without the second one all is equal.
      plan.empty_backward = false;
      plan.backwards = 2;
      const TrainingOutcome twice = train_through_elixird(plan);
      EXPECT_NE(twice.weights_xxh64, plain.weights_xxh64);
      for (const auto& [name, weight] : twice.weights) {
        if (name.find("c_attn.bias") != std::string::npos) continue;  // rounding noise, see above
        EXPECT_LT((weight - plain.weights.at(name)).abs().max().item<double>(), 2e-2) << name;
      }
    }
  }
}

TEST_F(Placements, SeveralRanksWithStatesOnTheDeviceTakeTheCollectiveExchange) {
  TrainingPlan plan = plan_of(2, ComputeType::kFp32);
  plan.steps = 2;
  plan.exchange.reset();
  EXPECT_EQ(train_through_elixird(plan).plan.exchange, shm::Exchange::kHost);
  plan.gpu_state_share = 0.5;
  EXPECT_EQ(train_through_elixird(plan).plan.exchange, shm::Exchange::kCollective);
}

TEST_F(Placements, TheCollectiveExchangeGivesTheBitsOfTheHostExchange) {
  for (const uint32_t ranks : {2u, 3u}) {
    TrainingPlan plan = plan_of(ranks, ComputeType::kFp32);
    const TrainingOutcome host = train_through_elixird(plan);
    for (const double share : {0.0, 0.5, 1.0}) {
      plan.exchange = shm::Exchange::kCollective;
      plan.gpu_state_share = share;
      SCOPED_TRACE(fmt::format("{} ranks, share {}", ranks, share));
      const TrainingOutcome collective = train_through_elixird(plan);
      EXPECT_EQ(collective.plan.exchange, shm::Exchange::kCollective);
      // On CPUs sums are made in the order of ranks by both.
      expect_equal_bits(collective, host);
    }
  }
}

TEST_F(Placements, TheCollectiveExchangeAddsAndDropsGradients) {
  TrainingPlan plan = plan_of(2, ComputeType::kFp32);
  for (const bool empty : {false, true}) {
    plan.empty_backward = empty;
    plan.backwards = empty ? 1 : 2;
    plan.exchange = shm::Exchange::kHost;
    const TrainingOutcome host = train_through_elixird(plan);
    plan.exchange = shm::Exchange::kCollective;
    for (const double share : {0.0, 0.5}) {
      plan.gpu_state_share = share;
      const TrainingOutcome collective = train_through_elixird(plan);
      EXPECT_NEAR(collective.losses.back(), host.losses.back(), 1e-4);
      if (empty) {
        EXPECT_EQ(collective.weights_xxh64, host.weights_xxh64);
      }
    }
    plan.gpu_state_share = 0;
  }
}

// ---- the order of work on a device's streams ----

struct LazyRun {
  TrainingOutcome outcome;
  std::mutex mutex;  // the ranks are threads
  std::string violation;
  size_t most_pending = 0;
};

// The device ends with the optimizer: what is asked of it is asked before.
class WatchedDevice final : public LazyDevice {
 public:
  WatchedDevice(const LazyFaults& faults, LazyRun* run) : LazyDevice(faults), run_(run) {}
  ~WatchedDevice() override {
    const std::lock_guard lock(run_->mutex);
    run_->violation += violation();
    run_->most_pending = std::max(run_->most_pending, most_pending());
    EXPECT_EQ(pins(), 0u);
  }

 private:
  LazyRun* run_;
};

std::unique_ptr<LazyRun> train_lazily(TrainingPlan plan, const LazyFaults& faults = {}) {
  auto run = std::make_unique<LazyRun>();
  plan.make_device = [&](uint32_t) { return std::make_unique<WatchedDevice>(faults, run.get()); };
  run->outcome = train_through_elixird(plan);
  return run;
}

TEST_F(Placements, CopiesMayHappenAsLateAsTheEventsAllow) {
  size_t most_pending = 0;  // how late depends on what elixird and other threads do meanwhile
  for (const shm::Exchange exchange : {shm::Exchange::kHost, shm::Exchange::kCollective}) {
    for (const uint32_t ranks : {1u, 2u}) {
      for (const double share : {0.0, 0.5, 1.0}) {
        if (exchange == shm::Exchange::kHost && ranks > 1 && share > 0) continue;  // refused
        TrainingPlan plan = plan_of(ranks, ComputeType::kBf16);
        plan.exchange = exchange;
        plan.gpu_state_share = share;
        plan.backwards = 2;
        SCOPED_TRACE(fmt::format("{} ranks, share {}", ranks, share));
        const TrainingOutcome at_once = train_through_elixird(plan);
        const std::unique_ptr<LazyRun> lazy = train_lazily(plan);
        expect_equal_bits(lazy->outcome, at_once);
        EXPECT_EQ(lazy->violation, "");
        most_pending = std::max(most_pending, lazy->most_pending);
      }
    }
  }
  EXPECT_GT(most_pending, 2u) << "it was not lazy";
}

TEST_F(Placements, ADroppedGradientOnItsWayDownIsNotTakenForTheNext) {
  TrainingPlan plan = plan_of(1, ComputeType::kFp32);
  plan.empty_backward = true;
  const TrainingOutcome at_once = train_through_elixird(plan);
  expect_equal_bits(train_lazily(plan)->outcome, at_once);
}

TEST_F(Placements, AMissingWaitIsSeen) {
  const TrainingPlan plan = plan_of(1, ComputeType::kFp32);
  const TrainingOutcome right = train_through_elixird(plan);
  EXPECT_NE(train_lazily(plan, {.compute_ignores_uploads = true})->outcome.weights_xxh64,
            right.weights_xxh64);
  // Whether elixird reads a gradient before it came is a race, which it wins now and then.
  bool seen = false;
  for (int attempt = 0; attempt < 50 && !seen; ++attempt) {
    seen = train_lazily(plan, {.host_does_not_wait = true})->outcome.weights_xxh64 !=
           right.weights_xxh64;
  }
  EXPECT_TRUE(seen);
  EXPECT_THAT(train_lazily(plan, {.uploads_ignore_compute = true})->violation,
              HasSubstr("operators may be reading"));
  EXPECT_THAT(train_lazily(plan, {.downloads_ignore_others = true})->violation,
              HasSubstr("a download that does not wait"));
  EXPECT_THAT(train_lazily(plan, {.compute_records_early = true})->violation,
              HasSubstr("a download of what was copied there later"));
  EXPECT_THAT(train_lazily(plan, {.compute_ignores_downloads = true})->violation,
              HasSubstr("filled that a download may be reading"));
  TrainingPlan collective = plan_of(2, ComputeType::kFp32);
  collective.exchange = shm::Exchange::kCollective;
  EXPECT_THAT(train_lazily(collective, {.reductions_ignore_compute = true})->violation,
              HasSubstr("a reduction that does not wait"));
}

// ---- device memory ----

TEST_F(Placements, APlanBeyondTheDevicesMemoryIsRefusedBeforeAnythingIsAllocated) {
  std::vector<ParameterSize> parameters(8, {"p", 1 << 20});
  for (int i = 0; i < 8; ++i) parameters[i].name += std::to_string(i);
  Options options{.layout = {.chunk_numel = 1 << 20, .rcache_blocks = 4}};
  EXPECT_EQ(make_run_plan(parameters, options, {}, true)->device_bytes(), 4u * 4 << 20);
  const uint64_t need_bytes = make_run_plan(parameters, options, {})->device_bytes();
  EXPECT_EQ(need_bytes, (4u + 2) * 4 << 20);
  options.device_memory_bytes = need_bytes;
  EXPECT_TRUE(make_run_plan(parameters, options, {}).ok());
  options.device_memory_bytes = need_bytes - 1;
  const Status refused = make_run_plan(parameters, options, {}).status();
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("--rcache-blocks"));
  EXPECT_THAT(refused.message(), HasSubstr("24.00 MiB"));
}

TEST_F(Placements, ThePlanCountsWhatTheDeviceHolds) {
  for (const uint32_t ranks : {1u, 2u}) {
    for (const shm::Exchange exchange : {shm::Exchange::kHost, shm::Exchange::kCollective}) {
      if (exchange == shm::Exchange::kHost && ranks > 1) continue;  // keeps no states there
      for (const bool lazy : {false, true}) {
        TrainingPlan plan = plan_of(ranks, ComputeType::kBf16);
        plan.steps = 2;
        plan.gpu_state_share = 0.5;
        plan.exchange = exchange;
        if (lazy) plan.make_device = [](uint32_t) { return std::make_unique<LazyDevice>(); };
        const TrainingOutcome outcome = train_through_elixird(plan);
        std::vector<ParameterSize> sizes;
        for (const auto& [name, weight] : outcome.weights) {
          sizes.push_back({name, static_cast<uint64_t>(weight.numel())});
        }
        LaunchEnvironment environment;
        environment.world_size = environment.local_world_size = ranks;
        Result<RunPlan> planned = make_run_plan(
            sizes,
            {.dtype = ComputeType::kBf16,
             .layout = {.chunk_numel = outcome.plan.chunk_numel, .exchange = exchange}},
            environment, !lazy);
        ASSERT_TRUE(planned.ok());
        // The names' order packs otherwise than the module's: the numbers that count are set.
        planned->shape.n_gpu_chunks = outcome.plan.n_gpu_chunks;
        planned->rcache_blocks = outcome.plan.rcache_blocks;
        EXPECT_EQ(planned->grad_blocks,
                  lazy || (ranks > 1 && exchange == shm::Exchange::kCollective) ? 2u : 0u);
        const double ratio = static_cast<double>(outcome.plan.device_bytes) /
                             static_cast<double>(planned->device_bytes());
        EXPECT_GE(ratio, 1.0) << ranks;
        EXPECT_LT(ratio, 1.2) << ranks;  // HostDevice rounds up to pages
      }
    }
  }
}

// A device that locks three pages and no more.
class StingyDevice final : public LazyDevice {
 public:
  Status pin(const std::byte* host, size_t bytes) override {
    if (pins() == 3) return error(Code::kResourceExhausted, "cudaHostRegister: out of memory");
    return LazyDevice::pin(host, bytes);
  }
};

TEST(PinnedRanges, GoOnWithoutWhatIsRefused) {
  std::vector<std::byte> memory(1 << 20);
  StingyDevice device;
  {
    std::vector<HostRange> ranges;
    for (int i = 0; i < 5; ++i) ranges.push_back({memory.data() + i * 4096, 4096});
    const PinnedRanges pinned(device, ranges);
    EXPECT_EQ(pinned.pinned_bytes(), 3u * 4096);
    EXPECT_EQ(pinned.refused_bytes(), 2u * 4096);
    EXPECT_EQ(device.pins(), 3u);
  }
  EXPECT_EQ(device.pins(), 0u);
}

TEST(PinnedRanges, ComeInPiecesOfAtMost64GiB) {
  LazyDevice device;  // refuses larger ones, touches none
  const auto* const nowhere = reinterpret_cast<const std::byte*>(uintptr_t{1} << 40);
  const PinnedRanges pinned(device, {{nowhere, (uint64_t{150} << 30) + 4096, 1 << 20}});
  EXPECT_EQ(pinned.refused_bytes(), 0u);
  EXPECT_EQ(device.pins(), 3u);
}

class NotingDevice final : public LazyDevice {
 public:
  Status pin(const std::byte* host, size_t bytes) override {
    pieces.emplace_back(host, host + bytes);
    return Status();
  }
  std::vector<std::pair<const std::byte*, const std::byte*>> pieces;
};

// CUDA refuses a copy that crosses two pieces, and a page that lies in two.
TEST(PinnedRanges, AreCutBetweenSlotsAndBetweenPages) {
  const auto* const nowhere = reinterpret_cast<const std::byte*>(uintptr_t{1} << 40);
  constexpr uint64_t kLimitBytes = 100'000, kBytes = 10 << 20;
  for (const uint64_t slot_bytes : {256u, 768u, 4096u, 66'560u, 300'032u, 10u << 20}) {
    NotingDevice device;
    const PinnedRanges pinned(device, {{nowhere, kBytes, slot_bytes}}, kLimitBytes);
    EXPECT_EQ(pinned.pinned_bytes(), kBytes);
    const std::byte* at = nowhere;
    for (const auto& [begin, end] : device.pieces) {
      EXPECT_EQ(begin, at);
      EXPECT_EQ((begin - nowhere) % slot_bytes, 0u) << slot_bytes;
      EXPECT_EQ((begin - nowhere) % 4096, 0);
      at = end;
    }
    EXPECT_EQ(at, nowhere + kBytes);
    if (slot_bytes < 66'560) {
      EXPECT_GT(device.pieces.size(), kBytes / kLimitBytes);
    }
  }
}

}  // namespace
}  // namespace elixir::test
