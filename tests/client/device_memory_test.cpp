// Memory that a plan takes on the device, and host memory that is page-locked for it.

#include "client/device/pinned_ranges.h"
#include "client/plan/run_plan.h"
#include "tests/client/lazy_device.h"
#include "tests/client/small_training.h"
#include "tests/client/with_elixird.h"
#include "tests/support/matchers.h"

namespace elixir::test {
namespace {

TEST(PlannedMemory, APlanBeyondTheDevicesMemoryIsRefusedBeforeAnythingIsAllocated) {
  std::vector<ParameterSize> parameters(8, {"p", 1 << 20});
  for (int i = 0; i < 8; ++i) parameters[i].name += std::to_string(i);
  Options options{.layout = {.chunk_numel = 1 << 20, .rcache_blocks = 4}};
  EXPECT_EQ(make_run_plan(parameters, options, {}, true)->device_bytes(), 4u * 4 << 20);
  const uint64_t need_bytes = make_run_plan(parameters, options, {})->device_bytes();
  EXPECT_EQ(need_bytes, (4u + 2) * 4 << 20);
  options.device_memory_bytes = need_bytes;
  EXPECT_TRUE(make_run_plan(parameters, options, {}).ok());
  options.device_memory_bytes = need_bytes - 1;
  expect_refused(make_run_plan(parameters, options, {}).status(), Code::kResourceExhausted,
                 {"--rcache-blocks", "24.00 MiB"});
}

class DeviceMemory : public WithElixird {};

TEST_F(DeviceMemory, IsWhatThePlanCounts) {
  constexpr shm::Exchange kHost = shm::Exchange::kHost, kCollective = shm::Exchange::kCollective;
  for (const auto& [ranks, exchange] :
       {std::pair{1u, kHost}, {1u, kCollective}, {2u, kCollective}}) {
    for (const bool lazy : {false, true}) {
      TrainingPlan plan;
      plan.ranks = ranks;
      plan.dtype = ComputeType::kBf16;
      plan.steps = 2;
      plan.layers = [](int64_t) { return in_order(); };
      plan.chunk_numel = 2 * kLayerNumel;
      plan.rcache_blocks = 3;
      plan.gpu_state_share = 0.5;
      plan.exchange = exchange;
      if (lazy) plan.make_device = [](uint32_t) { return std::make_unique<LazyDevice>(); };
      const uint64_t held_bytes = train_through_elixird(plan).plan.device_bytes;
      Options options = plan;
      options.layout = plan;
      LaunchEnvironment environment;
      environment.world_size = environment.local_world_size = ranks;
      const std::vector<ParameterSize> layers(kLayers, {"layer", kLayerNumel});
      const RunPlan planned = must(make_run_plan(layers, options, environment, !lazy));
      EXPECT_EQ(planned.grad_blocks, lazy || ranks > 1 ? 2u : 0u);
      const double ratio =
          static_cast<double>(held_bytes) / static_cast<double>(planned.device_bytes());
      EXPECT_GE(ratio, 1.0) << ranks;
      EXPECT_LT(ratio, 1.2) << ranks;  // HostDevice rounds up to pages
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
