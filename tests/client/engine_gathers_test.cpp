// How many chunks an optimizer gathers: what its engine tells the rCache of who uses a chunk, and
// of which chunks are frozen.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/device/host_device.h"
#include "planner/cache/belady.h"
#include "tests/client/adamw_on_device.h"
#include "tests/client/small_training.h"
#include "tests/client/with_elixird.h"

namespace elixir::test {
namespace {

class EngineGathers : public WithElixird {};

constexpr int64_t kSide = 16;

// A chunk each.
struct LayersInChunks : torch::nn::Module {
  LayersInChunks(int64_t n, int64_t n_frozen) {
    for (int64_t i = 0; i < n; ++i) {
      layers.push_back(
          register_module("layer" + std::to_string(i),
                          torch::nn::Linear(torch::nn::LinearOptions(kSide, kSide).bias(false))));
      layers.back()->weight.requires_grad_(i >= n_frozen);
    }
  }
  at::Tensor forward() {
    at::Tensor x = at::ones({2, kSide});
    for (auto& layer : layers) x = at::tanh(layer(x));
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};

// What the device has received, in chunks.
class Gathers {
 public:
  explicit Gathers(const Device& device) : device_(device) {}
  uint64_t since_last() {
    const uint64_t before = std::exchange(bytes_, device_.h2d_bytes());
    return (bytes_ - before) / (kSide * kSide * sizeof(float));
  }

 private:
  const Device& device_;
  uint64_t bytes_ = 0;
};

using Program = std::function<void(LayersInChunks&, Optimizer&, Gathers&)>;

void run(int64_t n, int64_t n_frozen, uint32_t blocks, const Program& program) {
  run_ranks(1, [&](const LaunchEnvironment& environment) {
    at::set_num_threads(1);
    LayersInChunks net(n, n_frozen);
    Options options;
    options.environment = environment;
    options.layout.chunk_numel = kSide * kSide;
    options.layout.rcache_blocks = blocks;
    auto device = std::make_unique<HostDevice>();
    Gathers gathers(*device);
    AdamWOnDevice optimizer(net, {}, options, std::move(device));
    program(net, optimizer, gathers);
  });
}

// Frozen chunks stay in blocks from step to step; each trained one comes once.
TEST_F(EngineGathers, AStepOfOneTrainedChunkAmongFifteenFrozenOnesIsOne) {
  run(16, 15, 16, [](LayersInChunks& net, Optimizer& optimizer, Gathers& gathers) {
    for (int step = 0; step < 6; ++step) {
      net.forward().sum().backward();
      optimizer.step();
      optimizer.zero_grad();
      EXPECT_EQ(gathers.since_last(), step == 0 ? 16 : 1) << step;
      EXPECT_EQ(optimizer.stats().gathers, step == 0 ? 16 : 1) << step;
    }
  });
}

// Passes without gradients have a record of their own: they miss as Belady's choices do, and a
// step between them is as it was without them.
TEST_F(EngineGathers, EvaluationPassesMissAsBeladySays) {
  constexpr int64_t kChunks = 10;
  constexpr uint32_t kBlocks = 6;
  constexpr int kPasses = 12;
  std::vector<std::vector<uint32_t>> uses;
  for (int pass = 0; pass < kPasses; ++pass) {
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) uses.push_back({chunk});
  }
  const uint64_t fewest = planner::simulate_cache(uses, kBlocks)->misses;
  run(kChunks, 0, kBlocks, [&](LayersInChunks& net, Optimizer& optimizer, Gathers& gathers) {
    const auto train = [&] {
      for (int step = 0; step < 3; ++step) {
        net.forward().sum().backward();
        optimizer.step();
        optimizer.zero_grad();
      }
      optimizer.synchronize();
    };
    train();
    const uint64_t of_a_step = optimizer.stats().gathers;
    gathers.since_last();
    {
      const at::NoGradGuard no_grad;
      for (int pass = 0; pass < kPasses; ++pass) net.forward();
    }
    const uint64_t gathered = gathers.since_last();
    EXPECT_GE(gathered, fewest);
    EXPECT_LE(gathered, fewest + kBlocks);  // fetched for a pass that does not come
    train();
    EXPECT_EQ(optimizer.stats().gathers, of_a_step);
  });
}

}  // namespace
}  // namespace elixir::test
