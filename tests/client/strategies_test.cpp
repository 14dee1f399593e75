// Bytes that steps move, against the papers' table (Elixir, arXiv 2212.05339, table 1), and modules
// whose steps differ from one another.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <cstdlib>
#include <mutex>
#include <random>

#include "base/compute_type_names.h"
#include "client/plan/run_plan.h"
#include "client/tensors/scalar_type.h"
#include "optim_cpu/adam.h"
#include "tests/client/small_training.h"
#include "tests/client/with_elixird.h"

namespace elixir::test {
namespace {

constexpr int64_t kWidth = 32;
constexpr uint64_t kChunkNumel = kWidth * kWidth;
constexpr uint64_t kChunkBytes = kChunkNumel * sizeof(float);

class Strategies : public WithElixird {};

// Layers without biases, each a chunk; the use of chunks is a forward pass and its mirror.
struct Stack : torch::nn::Module {
  explicit Stack(int64_t n) {
    static std::mutex one_generator;  // for all ranks' threads
    const std::lock_guard lock(one_generator);
    torch::manual_seed(5);
    for (int64_t i = 0; i < n; ++i) {
      layers.push_back(
          register_module("layer" + std::to_string(i),
                          torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false))));
    }
  }
  // `skipped`: a layer that is left out; none: -1.
  at::Tensor forward(at::Tensor x, int64_t skipped = -1) {
    for (size_t i = 0; i < layers.size(); ++i) {
      if (static_cast<int64_t>(i) != skipped) x = at::tanh(layers[i](x));
    }
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};

// What one rank's step moved, once the order of chunks is known; the same on all ranks.
StepStats moved(uint32_t ranks, int64_t n_chunks, const Options& options) {
  StepStats stats;
  std::mutex mutex;
  run_ranks(ranks, [&](const LaunchEnvironment& environment) {
    at::set_num_threads(1);
    Stack model(n_chunks);
    Options runtime = options;
    runtime.environment = environment;
    runtime.layout.chunk_numel = kChunkNumel;
    AdamW optimizer(model, {}, runtime);
    for (int step = 0; step < 4; ++step) {
      model.forward(at::ones({2, kWidth}).requires_grad_()).sum().backward();
      optimizer.step();
    }
    const std::lock_guard lock(mutex);
    if (stats.step != 0) {
      EXPECT_EQ(optimizer.stats().d2d_bytes, stats.d2d_bytes);
      EXPECT_EQ(optimizer.stats().h2d_bytes, stats.h2d_bytes);
    }
    stats = optimizer.stats();
  });
  return stats;
}

bool keeps_all(Strategy strategy) {
  return strategy != Strategy::kZero3 && strategy != Strategy::kRcacheMin;
}

// The table counts 2 L_c M where every chunk is gathered once and reduced once, and 4 L_c M where
// it is gathered twice, each gather with the way back of what it replaces. A ring moves (N - 1) / N
// of it, and of a chunk that is in a block still when backward begins nothing: b of 2 n gathers.
TEST_F(Strategies, CollectivesMoveTheBytesOfThePapersTable) {
  constexpr int64_t n = 12;
  for (uint32_t ranks : {1u, 2u, 4u}) {
    for (Strategy strategy : {Strategy::kDdp, Strategy::kZero1, Strategy::kZero2, Strategy::kZero3,
                              Strategy::kRcacheMax, Strategy::kRcacheMin}) {
      for (bool offload : {false, true}) {
        SCOPED_TRACE(fmt::format("{} ranks, strategy {}, offload {}", ranks,
                                 static_cast<int>(strategy), offload));
        Options runtime;
        runtime.layout.exchange = shm::Exchange::kCollective;
        runtime.strategy = strategy;
        runtime.offload = offload;
        const StepStats stats = moved(ranks, n, runtime);
        const uint64_t kept = keeps_all(strategy) ? n : kFewestBlocks;
        const uint64_t gathers = 2 * n - kept;
        const uint64_t model_bytes = n * kChunkBytes, missing = kept * kChunkBytes;
        // One rank without offload has its chunks where it needs them.
        const bool stays = ranks == 1 && !offload;
        EXPECT_EQ(stats.gathers, stays ? 0 : gathers);
        // In the table's accounting: 2 bytes for each byte gathered.
        const uint64_t table =
            keeps_all(strategy) ? 2 * model_bytes : 4 * model_bytes - 2 * missing;
        if (!stays) {
          EXPECT_EQ(2 * stats.gathers * kChunkBytes, table);
        }
        // What truly moves between devices: each chunk's gathers, and one reduction.
        EXPECT_EQ(stats.d2d_bytes, (gathers + n) * kChunkBytes * (ranks - 1) / ranks);
        // Over the links of all ranks together: shards up with each gather, and down once.
        EXPECT_EQ(stats.h2d_bytes * ranks, offload ? gathers * kChunkBytes : 0);
        EXPECT_EQ(stats.d2h_bytes * ranks, offload ? model_bytes : 0);
        if (keeps_all(strategy) && offload) {
          EXPECT_EQ((stats.h2d_bytes + stats.d2h_bytes) * ranks, 2 * model_bytes);
        }
      }
    }
  }
}

TEST_F(Strategies, BytesFallWithTheBlocks) {
  constexpr int64_t n = 10;
  for (shm::Exchange exchange : {shm::Exchange::kHost, shm::Exchange::kCollective}) {
    uint64_t h2d_before = UINT64_MAX, d2d_before = UINT64_MAX;
    for (uint32_t blocks = 2; blocks <= n; ++blocks) {
      Options runtime;
      runtime.layout.exchange = exchange;
      runtime.layout.rcache_blocks = blocks;
      const StepStats stats = moved(2, n, runtime);
      const bool host = exchange == shm::Exchange::kHost;
      EXPECT_LT(stats.h2d_bytes, h2d_before);
      if (host) {
        EXPECT_EQ(stats.d2d_bytes, 0u);
      } else {
        EXPECT_LT(stats.d2d_bytes, d2d_before);
      }
      h2d_before = stats.h2d_bytes;
      d2d_before = stats.d2d_bytes;
    }
  }
}

TEST_F(Strategies, WithTheHostExchangeARankMovesWhatOneRankAloneMoves) {
  for (Strategy strategy : {Strategy::kRcacheMax, Strategy::kRcacheMin}) {
    Options runtime;
    runtime.layout.exchange = shm::Exchange::kHost;
    runtime.strategy = strategy;
    const StepStats alone = moved(1, 12, runtime);
    for (uint32_t ranks : {2u, 4u}) {
      const StepStats stats = moved(ranks, 12, runtime);
      EXPECT_EQ(stats.d2d_bytes, 0u);
      EXPECT_EQ(stats.h2d_bytes, alone.h2d_bytes);
      EXPECT_EQ(stats.d2h_bytes, alone.d2h_bytes);
    }
  }
}

// ---- frozen parameters ----

// Layers 0, 2, 4 ... are frozen.
void freeze_every_second(Stack& model) {
  for (size_t i = 0; i < model.layers.size(); i += 2) {
    model.layers[i]->weight.set_requires_grad(false);
  }
}

// The weights after some steps, by layer.
std::vector<at::Tensor> train_half_frozen(const Options& options, uint32_t ranks) {
  std::vector<at::Tensor> weights;
  run_ranks(ranks, [&](const LaunchEnvironment& environment) {
    at::set_num_threads(1);
    Stack model(8);
    freeze_every_second(model);
    Options runtime = options;
    runtime.environment = environment;
    runtime.layout.chunk_numel = kChunkNumel;
    AdamW optimizer(model, {}, runtime);
    EXPECT_EQ(optimizer.plan().n_chunks, 4u);
    EXPECT_EQ(optimizer.plan().n_frozen_chunks, 4u);
    EXPECT_EQ(optimizer.plan().frozen_numel, 4 * kChunkNumel);
    for (int step = 0; step < 10; ++step) {
      const at::Tensor x = at::ones({2, kWidth}, scalar_type(runtime.dtype)) * (step % 3);
      model.forward(x).to(at::kFloat).sum().backward();
      optimizer.step();
    }
    if (ranks == 1) {
      // Gradients of the trained ones alone, and of those that are placed on the CPU.
      const auto chunk_bytes = kChunkNumel * element_bytes(runtime.dtype);
      EXPECT_EQ(optimizer.stats().d2h_bytes, (4 - optimizer.plan().n_gpu_chunks) * chunk_bytes);
    }
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> mine;
    for (auto& layer : model.layers) mine.push_back(layer->weight.clone());
    if (environment.rank == 0) weights = mine;
  });
  return weights;
}

TEST_F(Strategies, FrozenParametersAreGatheredAndStayAsTheyWere) {
  for (const ComputeType dtype : {ComputeType::kFp32, ComputeType::kBf16}) {
    Options runtime;
    runtime.dtype = dtype;
    const std::vector<at::Tensor> reference = train_half_frozen(runtime, 1);
    Stack initial(8);
    for (size_t i = 0; i < 8; ++i) {
      const bool same = at::equal(reference[i], initial.layers[i]->weight.to(scalar_type(dtype)));
      EXPECT_EQ(same, i % 2 == 0) << "layer " << i;
    }
    for (uint32_t ranks : {1u, 2u}) {
      for (shm::Exchange exchange : {shm::Exchange::kHost, shm::Exchange::kCollective}) {
        for (double share : {0.0, 0.5, 1.0}) {
          if (exchange == shm::Exchange::kHost && ranks > 1 && share > 0) continue;  // refused
          for (uint32_t blocks : {2u, 8u}) {
            SCOPED_TRACE(fmt::format("{}, {} ranks, exchange {}, share {}, {} blocks",
                                     compute_type_name(dtype), ranks, static_cast<int>(exchange),
                                     share, blocks));
            runtime.layout.exchange = exchange;
            runtime.layout.gpu_state_share = share;
            runtime.layout.rcache_blocks = blocks;
            const std::vector<at::Tensor> weights = train_half_frozen(runtime, ranks);
            for (size_t i = 0; i < 8; ++i) {
              // Two equal ranks: the mean of their gradients is each one's.
              EXPECT_TRUE(at::equal(weights[i], reference[i])) << "layer " << i;
            }
          }
        }
      }
    }
  }
}

TEST_F(Strategies, FrozenWeightsFromAnotherSeedShowThatTheyAreRead) {
  Options runtime;
  const std::vector<at::Tensor> reference = train_half_frozen(runtime, 1);
  run_ranks(1, [&](const LaunchEnvironment& environment) {
    Stack model(8);
    freeze_every_second(model);
    {
      const at::NoGradGuard no_grad;
      model.layers[4]->weight.mul_(1.5);
    }
    Options own = runtime;
    own.environment = environment;
    own.layout.chunk_numel = kChunkNumel;
    AdamW optimizer(model, {}, own);
    for (int step = 0; step < 10; ++step) {
      model.forward(at::ones({2, kWidth}) * (step % 3)).sum().backward();
      optimizer.step();
    }
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(at::equal(model.layers[1]->weight.clone(), reference[1]));
  });
}

// ---- steps that differ ----

// The stack's weights under LibTorch's gradients and the scalar reference; a layer without a
// gradient has a zero one.
class ReferenceStack {
 public:
  explicit ReferenceStack(int64_t n) : model_(n) {
    for (const at::Tensor& weight : model_.parameters()) {
      exp_avg_.push_back(at::zeros_like(weight));
      exp_avg_sq_.push_back(at::zeros_like(weight));
      steps_.push_back(0);
    }
  }

  Stack& model() { return model_; }
  void step() {
    const at::NoGradGuard no_grad;
    size_t i = 0;
    for (at::Tensor& weight : model_.parameters()) {
      if (!weight.grad().defined()) {  // it stays, and so does its own count of steps
        ++i;
        continue;
      }
      const optim::AdamStep constants =
          optim::make_adam_step({.lr = 1e-3, .weight_decay = 1e-2}, ++steps_[i], 1.0);
      const at::Tensor grad = weight.grad().contiguous();
      const void* const grads[] = {grad.const_data_ptr()};
      optim::UpdateSpan span;
      span.grads = grads;
      span.param = weight.mutable_data_ptr();
      span.moments[0] = exp_avg_[i].mutable_data_ptr<float>();
      span.moments[1] = exp_avg_sq_[i].mutable_data_ptr<float>();
      span.numel = kChunkNumel;
      optim::adam_update(optim::Isa::kScalar, span, constants);
      weight.mutable_grad().reset();
      ++i;
    }
  }

 private:
  Stack model_;
  std::vector<at::Tensor> exp_avg_, exp_avg_sq_;
  std::vector<uint64_t> steps_;  // by parameter
};

// Behind a link, so that chunks are on their way ahead of their use when a step departs.
TEST_F(Strategies, ALayerSkippedOnSomeStepsTrainsToTheBitsOfPlainLibTorchWithOneLogLine) {
  constexpr int64_t n = 8;
  at::set_num_threads(1);
  for (uint32_t blocks : {2u, 3u, 5u, 8u}) {
    for (UpdateMode update : {UpdateMode::kDeferred, UpdateMode::kImmediate}) {
      Options runtime;
      runtime.layout.chunk_numel = kChunkNumel;
      runtime.layout.rcache_blocks = blocks;
      runtime.update = update;
      runtime.link = HostLink{0.2, 0.2, 0.3, 5};
      runtime.environment = LaunchEnvironment{
          0,      1,           0, 1, fmt::format("skip-{}-{}", blocks, static_cast<int>(update)),
          "test", "127.0.0.1", 0};
      ReferenceStack reference(n);
      Stack model(n);
      std::mt19937 random(blocks);
      ::testing::internal::CaptureStderr();
      {
        AdamW optimizer(model, {}, runtime);
        for (int step = 0; step < 60; ++step) {
          const int64_t skipped = random() % 3 == 0 ? static_cast<int64_t>(random() % n) : -1;
          const at::Tensor x = at::randn({2, kWidth});
          model.forward(x, skipped).sum().backward();
          optimizer.step();
          reference.model().forward(x, skipped).sum().backward();
          reference.step();
        }
        const at::NoGradGuard no_grad;
        for (int64_t i = 0; i < n; ++i) {
          EXPECT_TRUE(
              at::equal(model.layers[i]->weight.clone(), reference.model().layers[i]->weight))
              << "layer " << i << ", " << blocks << " blocks";
        }
      }
      const std::string log = ::testing::internal::GetCapturedStderr();
      size_t lines = 0;
      for (size_t at = log.find("order_of_use_changed"); at != std::string::npos;
           at = log.find("order_of_use_changed", at + 1)) {
        ++lines;
      }
      EXPECT_EQ(lines, 1u) << log;
    }
  }
}

}  // namespace
}  // namespace elixir::test
