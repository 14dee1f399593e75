// Gradients of a chunk come together on the device: in how much memory, in how many copies, and
// with which bits when more chunks are incomplete than there are blocks.

#include <ATen/ATen.h>
#include <c10/core/StorageImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <functional>
#include <mutex>

#include "tests/client/adamw_on_device.h"
#include "tests/client/lazy_device.h"
#include "tests/client/small_training.h"
#include "tests/client/with_elixird.h"

namespace elixir::test {
namespace {

class Gradients : public WithElixird {};

constexpr int64_t kWidth = 32;
constexpr uint64_t kLayerNumel = kWidth * kWidth;

// Layers without biases. `order`: in which forward uses them; those it leaves out get no gradient.
struct Layers : torch::nn::Module {
  explicit Layers(int64_t n) {
    static std::mutex one_generator;
    const std::lock_guard lock(one_generator);
    torch::manual_seed(5);
    for (int64_t i = 0; i < n; ++i) {
      layers.push_back(
          register_module("layer" + std::to_string(i),
                          torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false))));
    }
  }
  at::Tensor forward(at::Tensor x, const std::vector<int>& order) {
    for (const int i : order) x = at::tanh(layers[i](x));
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};

struct Job {
  std::vector<int> order = {};
  int64_t n_layers = 12;
  uint64_t chunk_layers = 1;
  uint32_t ranks = 1;
  shm::Exchange exchange = shm::Exchange::kHost;
  uint32_t accumulate = 1;
  UpdateMode update = UpdateMode::kDeferred;
  std::optional<double> clip_norm = {};
  int backwards = 1;  // before a step, whatever accumulate says
  bool lazy = true;
  std::function<void(Layers&)> look = {};  // before training
};

struct Seen {
  std::vector<at::Tensor> weights;
  uint64_t d2h_bytes = 0;
  size_t downloads = 0;  // a step
  std::string violation;
};

Seen train(const Job& job) {
  Seen seen;
  run_ranks(job.ranks, [&](const LaunchEnvironment& environment) {
    at::set_num_threads(1);
    Layers model(job.n_layers);
    Options runtime;
    runtime.environment = environment;
    runtime.layout.chunk_numel = job.chunk_layers * kLayerNumel;
    runtime.layout.exchange = job.exchange;
    runtime.accumulate = job.accumulate;
    runtime.update = job.update;
    runtime.clip_norm = job.clip_norm;
    LazyDevice* const lazy = job.lazy ? new LazyDevice : nullptr;
    std::unique_ptr<Device> device(lazy);
    if (!job.lazy) device = std::make_unique<HostDevice>();
    AdamWOnDevice optimizer(model, {}, runtime, std::move(device));
    if (job.look) job.look(model);
    size_t downloads = 0;
    for (int step = 0; step < 6; ++step) {
      downloads = lazy != nullptr ? lazy->downloads() : 0;
      for (int i = 0; i < job.backwards; ++i) {
        const at::Tensor x = at::ones({2, kWidth}) * (step % 3 + i + environment.rank);
        model.forward(x, job.order).sum().backward();
      }
      optimizer.step();
    }
    optimizer.synchronize();
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> weights;  // brought together by all ranks
    for (auto& layer : model.layers) weights.push_back(layer->weight.clone());
    if (environment.rank != 0) return;
    seen.weights = weights;
    seen.d2h_bytes = optimizer.stats().d2h_bytes;
    if (lazy != nullptr) seen.downloads = lazy->downloads() - downloads;
    if (lazy != nullptr) seen.violation = lazy->violation();
  });
  return seen;
}

std::vector<int> in_order(int n) {
  std::vector<int> order(n);
  for (int i = 0; i < n; ++i) order[i] = i;
  return order;
}

void expect_equal(const Seen& a, const Seen& b) {
  ASSERT_EQ(a.weights.size(), b.weights.size());
  for (size_t i = 0; i < a.weights.size(); ++i) {
    EXPECT_TRUE(at::equal(a.weights[i], b.weights[i])) << "layer " << i;
  }
}

TEST_F(Gradients, GoDownInOneCopyAChunk) {
  for (const uint64_t chunk_layers : {1, 3, 4}) {
    Job job{.order = in_order(12), .chunk_layers = chunk_layers};
    const Seen seen = train(job);
    EXPECT_EQ(seen.downloads, 12 / chunk_layers);
    EXPECT_EQ(seen.d2h_bytes, 12 * kLayerNumel * sizeof(float));
    EXPECT_EQ(seen.violation, "");
    job.lazy = false;
    expect_equal(seen, train(job));
  }
}

// However late the device is: torch's own memory of a gradient is free as soon as backward is past
// it. (A gradient is seen before it is taken; the one taken last may be there still.)
TEST_F(Gradients, NoneIsKeptForItsWayDown) {
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> grads;
  size_t most_alive = 0;
  Job job{.order = in_order(12), .chunk_layers = 3};
  job.look = [&](Layers& model) {
    for (auto& layer : model.layers) {
      layer->weight.register_hook([&](const at::Tensor& grad) {
        const auto alive = std::count_if(grads.begin(), grads.end(),
                                         [](const auto& each) { return !each.expired(); });
        most_alive = std::max(most_alive, static_cast<size_t>(alive));
        grads.emplace_back(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
            grad.storage().unsafeGetStorageImpl()));
      });
    }
  };
  train(job);
  EXPECT_EQ(grads.size(), 6u * 12);
  EXPECT_LE(most_alive, 1u);
}

// Three chunks of which every other operator is another's: all are incomplete until the end.
TEST_F(Gradients, OfMoreChunksThanBlocksHaveTheSameBits) {
  const std::vector<int> across = {0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11};
  for (const shm::Exchange exchange : {shm::Exchange::kHost, shm::Exchange::kCollective}) {
    for (const uint32_t ranks : {1u, 2u}) {
      for (const uint32_t accumulate : {1u, 2u}) {
        for (const UpdateMode update : {UpdateMode::kDeferred, UpdateMode::kImmediate}) {
          SCOPED_TRACE(fmt::format("exchange {}, {} ranks, accumulate {}, update {}",
                                   static_cast<int>(exchange), ranks, accumulate,
                                   static_cast<int>(update)));
          Job job{.order = across, .chunk_layers = 3, .ranks = ranks, .exchange = exchange};
          job.accumulate = accumulate;
          job.backwards = static_cast<int>(accumulate);
          job.update = update;
          const Seen lazy = train(job);
          EXPECT_EQ(lazy.violation, "");
          if (exchange == shm::Exchange::kHost) {
            EXPECT_GT(lazy.downloads, 4u * accumulate);  // it was put to the test
          }
          job.lazy = false;
          job.exchange = shm::Exchange::kHost;
          expect_equal(lazy, train(job));
        }
      }
    }
  }
}

TEST_F(Gradients, OfParametersWithoutOneAreZero) {
  for (const uint32_t ranks : {1u, 2u}) {
    for (const bool clips : {false, true}) {
      Job job{.order = {0, 2, 3, 4, 9, 11}, .chunk_layers = 3, .ranks = ranks};
      if (clips) job.clip_norm = 0.1;
      const Seen lazy = train(job);
      EXPECT_EQ(lazy.violation, "");
      EXPECT_EQ(lazy.downloads, 4u);  // none twice
      job.lazy = false;
      expect_equal(lazy, train(job));
    }
  }
}

TEST_F(Gradients, OfALayerUsedTwiceAndOfSeveralBackwardsAddUp) {
  for (const shm::Exchange exchange : {shm::Exchange::kHost, shm::Exchange::kCollective}) {
    for (const uint32_t ranks : {1u, 2u}) {
      for (const bool clips : {false, true}) {
        Job job{.order = {0, 1, 2, 3, 4, 5, 1, 6, 7, 8, 9, 5, 10, 0}, .chunk_layers = 3};
        job.ranks = ranks;
        job.exchange = exchange;
        job.backwards = 3;
        if (clips) job.clip_norm = 0.1;
        const Seen lazy = train(job);
        EXPECT_EQ(lazy.violation, "");
        job.lazy = false;
        expect_equal(lazy, train(job));
      }
    }
  }
}

}  // namespace
}  // namespace elixir::test
