// Ranks whose backward passes of a step use different parameters: in which order a parameter's
// gradients are added up follows from the passes alone, not from which others share its chunk.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <initializer_list>
#include <memory>
#include <ostream>
#include <string_view>

#include "client/device/host_device.h"
#include "client/elixir.h"
#include "models/mix_bits.h"
#include "shm/shape.h"
#include "tests/client/adamw_on_device.h"
#include "tests/client/small_training.h"
#include "tests/client/with_elixird.h"
#include "tests/support/every_case.h"
#include "tests/support/temporary_folder.h"

namespace elixir::test {
namespace {

constexpr int kParts = 6;
constexpr int64_t kSteps = 3;

struct PassesCase {
  shm::Exchange exchange = shm::Exchange::kHost;
  ComputeType type = ComputeType::kFp32;
  uint32_t ranks = 2;
  int passes = 2;      // of rank 0
  int fewer_each = 0;  // of each rank than of the one before; at least one is left
  UpdateMode update = UpdateMode::kDeferred;
  uint32_t swing_stride = 0;

  int passes_of(uint32_t rank) const {
    return std::max(1, passes - fewer_each * static_cast<int>(rank));
  }
};

std::ostream& operator<<(std::ostream& out, const PassesCase& of) {
  return out << shm::exchange_name(of.exchange) << ", "
             << (of.type == ComputeType::kFp32 ? "FP32, " : "BF16, ") << of.ranks << " ranks, "
             << of.passes << " passes, " << of.fewer_each << " fewer each, "
             << (of.update == UpdateMode::kEarly ? "early, " : "deferred, ") << "swing stride "
             << of.swing_stride;
}

// All ranks run all layers, as the collective exchange wants it; what has no part in the loss has
// no gradient.
at::Tensor loss_of(Stack& model, at::ScalarType dtype, uint32_t rank, int64_t step, int pass) {
  at::Tensor loss = at::zeros({});
  for (int part = 0; part < kParts; ++part) {
    const auto number = static_cast<double>(1000 * step + 100 * pass + 10 * rank + part + 1);
    const at::Tensor x =
        at::sin(at::arange(4 * kLayerSide, at::kFloat) * number).reshape({4, kLayerSide}).to(dtype);
    const at::Tensor y = model.layers[static_cast<size_t>(part)](x);
    const bool used = part == pass || (mix_bits(static_cast<uint64_t>(number)) & 1) != 0;
    if (used) loss = loss + y.to(at::kFloat).square().mean();
  }
  return loss;
}

struct Trained {
  uint64_t hash = 0;
  uint64_t early_chunks = 0, swing_chunks = 0;  // of the steps that rank 0 was told of
};

Trained train(const PassesCase& of, uint64_t chunk_numel) {
  Trained trained;
  run_ranks(of.ranks, [&](const LaunchEnvironment& environment) {
    Stack model(kParts);
    Options options;
    options.dtype = of.type;
    options.environment = environment;
    options.update = of.update;
    options.layout = {.chunk_numel = chunk_numel,
                      .rcache_blocks = 64,
                      .long_blocks = chunk_numel < kLayerNumel ? kParts : 0u,
                      .exchange = of.exchange,
                      .swing_stride = of.swing_stride};
    // A chunk is early when the passes that were announced have come.
    if (of.update == UpdateMode::kEarly) options.accumulate = static_cast<uint32_t>(of.passes);
    AdamW optimizer(model, AdamWOptions{.lr = 1e-2}, options);
    const at::ScalarType dtype = of.type == ComputeType::kFp32 ? at::kFloat : at::kBFloat16;
    for (int64_t step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      for (int pass = 0; pass < of.passes_of(environment.rank); ++pass) {
        loss_of(model, dtype, environment.rank, step, pass).backward();
      }
      optimizer.step();
      optimizer.synchronize();
      if (environment.rank != 0) continue;
      trained.early_chunks += optimizer.stats().early_chunks;
      trained.swing_chunks += optimizer.stats().swing_chunks;
    }
    const uint64_t mine = optimizer.weights_xxh64();
    if (environment.rank == 0) trained.hash = mine;
  });
  return trained;
}

class OtherParameters : public WithElixird {
 protected:
  // Chunks of these lengths, and of one parameter each, give one hash.
  static void expect_one_hash(const PassesCase& of, std::initializer_list<size_t> lengths) {
    SCOPED_TRACE(of);
    constexpr std::array<uint64_t, 4> kHalves = {1, 4, 6, 12};  // of a parameter
    const Trained first = train(of, kLayerNumel);
    // It is chance whether a worker is in time for an early update; job_modes_test shows them.
    if (of.update != UpdateMode::kEarly) {
      EXPECT_EQ(first.early_chunks, 0u);
    }
    EXPECT_EQ(first.swing_chunks > 0, of.swing_stride > 0);
    for (const size_t length : lengths) {
      const uint64_t halves = kHalves[length % kHalves.size()];
      EXPECT_EQ(train(of, halves * kLayerNumel / 2).hash, first.hash)
          << "chunks of " << halves << " halves of a parameter";
    }
  }
};

// Each number of passes meets each length.
TEST_F(OtherParameters, TheChunkLengthChangesNoBit) {
  size_t number = 0;
  for (const shm::Exchange exchange : {shm::Exchange::kHost, shm::Exchange::kCollective}) {
    for (const ComputeType type : {ComputeType::kFp32, ComputeType::kBf16}) {
      for (const uint32_t ranks : {2u, 3u}) {
        for (const int passes : {2, 3, 4, 5}) {
          const size_t at = number++;
          // Every two values meet in a half of the cases.
          if (!every_case() && std::popcount(at) % 2 != 0) continue;
          expect_one_hash({exchange, type, ranks, passes}, {at + at / 4});
        }
      }
    }
  }
}

TEST_F(OtherParameters, NorWhereRanksMakeDifferentNumbersOfPasses) {
  size_t number = 0;
  for (const shm::Exchange exchange : {shm::Exchange::kHost, shm::Exchange::kCollective}) {
    for (const uint32_t ranks : {2u, 3u}) {
      for (const int fewer_each : {1, 2}) {
        const ComputeType type = fewer_each == 1 ? ComputeType::kFp32 : ComputeType::kBf16;
        expect_one_hash({exchange, type, ranks, 4, fewer_each}, {number, number + 1});
        ++number;
      }
    }
  }
}

TEST_F(OtherParameters, NorWhereUpdatesAreEarlyOrSwing) {
  size_t number = 0;
  for (const shm::Exchange exchange : {shm::Exchange::kHost, shm::Exchange::kCollective}) {
    for (const UpdateMode update : {UpdateMode::kEarly, UpdateMode::kDeferred}) {
      for (const uint32_t swing_stride : {0u, 2u}) {
        if (update == UpdateMode::kDeferred && swing_stride == 0) continue;
        const ComputeType type = swing_stride == 0 ? ComputeType::kBf16 : ComputeType::kFp32;
        expect_one_hash({.exchange = exchange,
                         .type = type,
                         .passes = 3,
                         .update = update,
                         .swing_stride = swing_stride},
                        {number, number + 1});
        ++number;
      }
    }
  }
}

// Counts host memory for gradients that wait; nothing of it is given back before the end.
class CountingDevice final : public HostDevice {
 public:
  explicit CountingDevice(std::atomic<uint64_t>* aside_bytes) : aside_bytes_(*aside_bytes) {}
  std::byte* allocate_host(size_t bytes, const char* what) override {
    if (std::string_view(what) == "gradients that are put aside") aside_bytes_ += bytes;
    return HostDevice::allocate_host(bytes, what);
  }

 private:
  std::atomic<uint64_t>& aside_bytes_;
};

// The parameter that is reduced first has a gradient in no pass.
TEST_F(OtherParameters, GradientsThatWaitTakeOneModelAtMost) {
  constexpr int kPasses = 24, kSteps = 2;
  constexpr uint64_t kModelBytes = kLayers * kLayerNumel * sizeof(float);
  for (const shm::Exchange exchange : {shm::Exchange::kHost, shm::Exchange::kCollective}) {
    std::atomic<uint64_t> aside_bytes[2] = {};
    run_ranks(2, [&](const LaunchEnvironment& environment) {
      Stack model(kLayers);
      Options options;
      options.environment = environment;
      options.layout = {.chunk_numel = kLayerNumel, .rcache_blocks = 64, .exchange = exchange};
      AdamWOnDevice optimizer(model, optim::AdamOptions{}, options,
                              std::make_unique<CountingDevice>(&aside_bytes[environment.rank]));
      const at::Tensor x = at::ones({4, kLayerSide});
      for (int pass = 0; pass < kSteps * kPasses; ++pass) {
        at::Tensor loss = at::zeros({});
        for (int layer = 0; layer < kLayers; ++layer) {
          const at::Tensor y = model.layers[static_cast<size_t>(layer)](x);
          if (layer != 0 && layer != kLayers - 1) loss = loss + y.square().mean();
        }
        loss.backward();
        if ((pass + 1) % kPasses == 0) optimizer.step();
      }
      optimizer.synchronize();
    });
    for (const std::atomic<uint64_t>& bytes : aside_bytes) {
      EXPECT_LE(bytes, kModelBytes) << shm::exchange_name(exchange);
      EXPECT_EQ(bytes > 0, exchange == shm::Exchange::kCollective);
    }
  }
}

// Step s uses layer 0 on every rank and, on rank r alone, layer r + 1; the last layer never.
void step_of(AdamW& optimizer, Stack& model, uint32_t rank) {
  optimizer.zero_grad();
  const at::Tensor x = at::ones({4, kLayerSide});
  at::Tensor loss = at::zeros({});
  for (int layer = 0; layer < kLayers; ++layer) {
    const at::Tensor y = model.layers[static_cast<size_t>(layer)](x);
    if (layer == 0 || layer == static_cast<int>(rank) + 1) loss = loss + y.square().mean();
  }
  loss.backward();
  optimizer.step();
}

// torch counts a parameter's steps where a gradient came, all-reduced, to every rank.
void expect_counts(AdamW& optimizer, uint32_t ranks, uint64_t steps) {
  const auto states = optimizer.state_dict();
  for (int layer = 0; layer < kLayers; ++layer) {
    const bool used = layer <= static_cast<int>(ranks);
    EXPECT_EQ(states.at("layer" + std::to_string(layer) + ".weight").step, used ? steps : 0)
        << "layer " << layer << " of " << ranks << " ranks";
  }
}

TEST_F(OtherParameters, EveryRankKnowsHowOftenAParameterWasUpdated) {
  const elixir::testing::TemporaryFolder folder;
  for (const shm::Exchange exchange : {shm::Exchange::kHost, shm::Exchange::kCollective}) {
    for (const UpdateMode update : {UpdateMode::kDeferred, UpdateMode::kEarly}) {
      const std::string saved = folder.path(std::string(shm::exchange_name(exchange)) +
                                            (update == UpdateMode::kEarly ? "_early" : ""));
      constexpr uint32_t kRanks = 3;
      for (const bool resumes : {false, true}) {
        run_ranks(kRanks, [&](const LaunchEnvironment& environment) {
          Stack model(kLayers);
          Options options;
          options.environment = environment;
          options.update = update;
          if (resumes) options.load_from = saved;
          options.layout = {.chunk_numel = 2 * kLayerNumel, .exchange = exchange};
          AdamW optimizer(model, AdamWOptions{}, options);
          const uint64_t before = resumes ? 2 : 0;
          expect_counts(optimizer, kRanks, before);
          for (uint64_t step = 1; step <= 2; ++step) {
            step_of(optimizer, model, environment.rank);
            expect_counts(optimizer, kRanks, before + step);
          }
          if (!resumes) optimizer.save(saved).wait();
        });
      }
    }
  }
}

}  // namespace
}  // namespace elixir::test
