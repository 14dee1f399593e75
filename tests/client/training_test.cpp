// Training through a real elixird: the bytes that a step moves, gradients on their way, parameters
// that are read meanwhile, and refusals. no_bit_changes_test.cpp has the bits of every plan.

#include <ATen/ATen.h>
#include <c10/core/StorageImpl.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <random>

#include "client/device/host_device.h"
#include "client/plan/run_plan.h"
#include "planner/cache/belady.h"
#include "tests/client/lazy_device.h"
#include "tests/client/small_training.h"
#include "tests/client/with_elixird.h"
#include "tests/support/matchers.h"

namespace elixir::test {
namespace {

constexpr uint64_t kLayerBytes = kLayerNumel * sizeof(float);

class Training : public WithElixird {};

template <typename Run>
std::string message_of(const Run& run) {
  try {
    run();
  } catch (const std::exception& failure) {
    return failure.what();
  }
  return "";
}

// A layer a chunk; a step uses them forward and, in the mirrored order, backward.
TrainingPlan plan_of_layers() {
  TrainingPlan plan;
  plan.batch = 2;
  plan.steps = 4;
  plan.layers = [](int64_t) { return in_order(); };
  plan.chunk_numel = kLayerNumel;
  return plan;
}

// ---- what a step moves ----

// Counts of one rank's step, once the order of chunks is known; the same on all ranks.
StepStats moved(TrainingPlan plan) {
  std::vector<StepStats> stats(plan.ranks);
  plan.looks = [&](Optimizer& optimizer, uint32_t rank, uint64_t) {
    stats[rank] = optimizer.stats();
  };
  train_through_elixird(plan);
  for (const StepStats& each : stats) {
    EXPECT_EQ(each.d2d_bytes, stats[0].d2d_bytes);
    EXPECT_EQ(each.h2d_bytes, stats[0].h2d_bytes);
    EXPECT_EQ(each.d2h_bytes, stats[0].d2h_bytes);
  }
  return stats[0];
}

struct Blocks {
  Strategy strategy = Strategy::kNone;
  uint32_t asked = 0;
  uint32_t there = kLayers;
  uint32_t most_ranks = 2;
};

// The papers' table (Elixir, arXiv 2212.05339, table 1) counts 2 L_c M where every chunk is
// gathered once and reduced once, and 4 L_c M where it is gathered twice, each gather with the way
// back of what it replaces. A ring moves (N - 1) / N of it, and of a chunk that is in a block still
// when backward begins nothing: b of 2 n gathers.
TEST_F(Training, AStepMovesTheBytesOfThePapersTable) {
  constexpr Blocks kRows[] = {{Strategy::kDdp, 0, kLayers, 4},
                              {Strategy::kZero1},
                              {Strategy::kZero2},
                              {Strategy::kZero3, 0, kFewestBlocks, 4},
                              {Strategy::kRcacheMax},
                              {Strategy::kRcacheMin, 0, kFewestBlocks},
                              {Strategy::kNone, 2, 2},
                              {Strategy::kNone, 5, 5, 4},
                              {Strategy::kNone, 1000}};
  for (const uint32_t ranks : {1u, 2u, 4u}) {
    for (const shm::Exchange exchange : {shm::Exchange::kHost, shm::Exchange::kCollective}) {
      for (const Blocks& blocks : kRows) {
        for (const bool offload : {true, false}) {
          const bool collective = exchange == shm::Exchange::kCollective;
          if (ranks > blocks.most_ranks || (ranks == 1 && collective)) continue;
          if (!offload && blocks.strategy == Strategy::kNone) continue;
          if (!offload && ranks > 1 && !collective) continue;  // refused
          SCOPED_TRACE(fmt::format("{} ranks, exchange {}, strategy {}, {} blocks, offload {}",
                                   ranks, static_cast<int>(exchange),
                                   static_cast<int>(blocks.strategy), blocks.there, offload));
          TrainingPlan plan = plan_of_layers();
          plan.ranks = ranks;
          plan.exchange = exchange;
          plan.strategy = blocks.strategy;
          plan.rcache_blocks = blocks.asked;
          plan.offload = offload;
          const StepStats stats = moved(plan);
          // One rank without offload has its chunks where it needs them.
          const uint64_t gathers = ranks == 1 && !offload ? 0 : 2 * kLayers - blocks.there;
          EXPECT_EQ(stats.gathers, gathers);
          // Between devices, each chunk's gathers and one reduction. Over each rank's link its part
          // goes up with each gather, and gradients down once.
          const uint64_t parts = collective ? ranks : 1;
          const uint64_t up = offload ? gathers : 0, down = offload ? kLayers : 0;
          EXPECT_EQ(stats.d2d_bytes, (gathers + kLayers) * kLayerBytes * (parts - 1) / parts);
          EXPECT_EQ(stats.h2d_bytes, up * kLayerBytes / parts);
          EXPECT_EQ(stats.d2h_bytes, down * kLayerBytes / parts);
        }
      }
    }
  }
}

TEST_F(Training, ChunksPlacedOnTheDeviceAndFrozenOnesSendNoGradientsDown) {
  TrainingPlan plan = plan_of_layers();
  plan.gpu_state_share = 0.5;
  EXPECT_EQ(moved(plan).d2h_bytes, kLayers / 2 * kLayerBytes);
  plan.gpu_state_share = 0;
  plan.freezes = [](const std::string& name) { return name.starts_with("layer1"); };
  EXPECT_EQ(moved(plan).d2h_bytes, (kLayers - 3) * kLayerBytes);
}

// Frozen chunks stay in blocks from step to step; each trained one comes once.
TEST_F(Training, AStepOfOneTrainedChunkAmongElevenFrozenOnesGathersOne) {
  TrainingPlan plan = plan_of_layers();
  plan.rcache_blocks = kLayers;
  plan.freezes = [](const std::string& name) { return name != "layer11.weight"; };
  plan.looks = [](Optimizer& optimizer, uint32_t, uint64_t steps) {
    const uint64_t gathers = steps == 1 ? kLayers : 1;
    if (steps == 0) return;
    EXPECT_EQ(optimizer.stats().gathers, gathers) << steps;
    EXPECT_EQ(optimizer.stats().h2d_bytes, gathers * kLayerBytes) << steps;
  };
  expect_equal_bits(train_through_elixird(plan), train_with_scalar_reference(plan));
}

// Passes without gradients have a record of their own: they miss as Belady's choices do, and a
// step between them is as it was without them.
TEST_F(Training, EvaluationPassesMissAsBeladySays) {
  constexpr uint32_t kBlocks = 6;
  constexpr int kPasses = 12;
  std::vector<std::vector<uint32_t>> uses;
  for (uint32_t use = 0; use < kPasses * kLayers; ++use) uses.push_back({use % kLayers});
  const uint64_t fewest = planner::simulate_cache(uses, kBlocks)->misses;
  TrainingPlan plan = plan_of_layers();
  plan.steps = 6;
  plan.rcache_blocks = kBlocks;
  HostDevice* device = nullptr;
  plan.make_device = [&](uint32_t) {
    auto made = std::make_unique<HostDevice>();
    device = made.get();
    return made;
  };
  Stack* net = nullptr;
  plan.begins = [&](torch::nn::Module& model) { net = model.as<Stack>(); };
  uint64_t of_a_step = 0;
  plan.looks = [&](Optimizer& optimizer, uint32_t, uint64_t steps) {
    if (steps == 6) {
      EXPECT_EQ(optimizer.stats().gathers, of_a_step);
    }
    if (steps != 3) return;
    of_a_step = optimizer.stats().gathers;
    optimizer.synchronize();
    const uint64_t before = device->h2d_bytes();
    const at::NoGradGuard no_grad;
    for (int pass = 0; pass < kPasses; ++pass) {
      net->forward(at::ones({2, kLayerSide}), in_order());
    }
    const uint64_t gathered = (device->h2d_bytes() - before) / kLayerBytes;
    // (Some are fetched for a pass that does not come.)
    EXPECT_THAT(gathered, AllOf(Ge(fewest), Le(fewest + kBlocks)));
  };
  train_through_elixird(plan);
}

// Behind a link, so that chunks are on their way ahead of their use when a step departs.
TEST_F(Training, LayersThatSomeStepsSkipHaveTheReferencesBitsAndOneLogLine) {
  for (const uint32_t blocks : {2u, 3u, 5u, 8u}) {
    for (const UpdateMode update : {UpdateMode::kDeferred, UpdateMode::kImmediate}) {
      SCOPED_TRACE(fmt::format("{} blocks, update {}", blocks, static_cast<int>(update)));
      TrainingPlan plan = plan_of_layers();
      plan.steps = 40;
      plan.rcache_blocks = blocks;
      plan.update = update;
      plan.link = HostLink{0.2, 0.2, 0.3, 5};
      plan.layers = [blocks](int64_t step) {
        std::mt19937 random(static_cast<uint32_t>(step) * 100 + blocks);
        std::vector<int> order = in_order();
        if (random() % 3 == 0) order.erase(order.begin() + static_cast<int>(random() % kLayers));
        return order;
      };
      ::testing::internal::CaptureStderr();
      const TrainingOutcome ours = train_through_elixird(plan);
      const std::string log = ::testing::internal::GetCapturedStderr();
      expect_equal_bits(ours, train_with_scalar_reference(plan));
      const size_t line = log.find("order_of_use_changed");
      ASSERT_NE(line, std::string::npos) << log;
      EXPECT_EQ(log.find("order_of_use_changed", line + 1), std::string::npos) << log;
    }
  }
}

// ---- gradients on their way ----

struct Downloads {
  std::vector<int> order;
  uint64_t chunk_layers;
  ::testing::Matcher<size_t> expected;
};

// Three chunks of which every other operator is another's are incomplete until the end: they are
// more than there are blocks, and some go down twice.
TEST_F(Training, GradientsGoDownInOneCopyAChunk) {
  const std::vector<Downloads> rows = {{in_order(), 1, 12},
                                       {in_order(), 3, 4},
                                       {in_order(), 4, 3},
                                       {{0, 2, 3, 4, 9, 11}, 3, 4},
                                       {{0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11}, 3, Gt(4u)}};
  for (const auto& [order, chunk_layers, expected] : rows) {
    LazyDevice* device = nullptr;
    size_t before = 0;
    TrainingPlan plan = plan_of_layers();
    plan.layers = [&order = order](int64_t) { return order; };
    plan.chunk_numel = chunk_layers * kLayerNumel;
    plan.make_device = [&](uint32_t) {
      auto made = std::make_unique<LazyDevice>();
      device = made.get();
      return made;
    };
    plan.looks = [&, &expected = expected](Optimizer&, uint32_t, uint64_t steps) {
      if (steps == 4) {
        EXPECT_THAT(device->downloads() - before, expected);
      }
      before = device->downloads();
      EXPECT_EQ(device->violation(), "");
    };
    expect_equal_bits(train_through_elixird(plan), train_with_scalar_reference(plan));
  }
}

// However late the device is: torch's own memory of a gradient is free as soon as backward is past
// it. (A gradient is seen before it is taken; the one taken last may be there still.)
TEST_F(Training, NoGradientIsKeptForItsWayDown) {
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> grads;
  size_t most_alive = 0;
  TrainingPlan plan = plan_of_layers();
  plan.chunk_numel = 3 * kLayerNumel;
  plan.make_device = [](uint32_t) { return std::make_unique<LazyDevice>(); };
  plan.begins = [&](torch::nn::Module& model) {
    for (const at::Tensor& weight : model.parameters()) {
      weight.register_hook([&](const at::Tensor& grad) {
        const auto alive = std::count_if(grads.begin(), grads.end(),
                                         [](const auto& each) { return !each.expired(); });
        most_alive = std::max(most_alive, static_cast<size_t>(alive));
        grads.emplace_back(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
            grad.storage().unsafeGetStorageImpl()));
      });
    }
  };
  train_through_elixird(plan);
  EXPECT_EQ(grads.size(), 4u * kLayers);
  EXPECT_LE(most_alive, 1u);
}

// ---- parameters ----

TEST_F(Training, AGuardMayOutliveItsOptimizer) {
  torch::nn::Linear layer(8, 8);
  auto optimizer = std::make_unique<AdamW>(*layer);
  const Gathered guard = gathered({layer->weight});
  EXPECT_NE(layer->weight.data_ptr<float>(), nullptr);
  optimizer.reset();
  EXPECT_ANY_THROW(layer->weight.data_ptr<float>());
}

// Runs a program on one rank, with layers in chunks of their own.
void run_stack(int layers, const Options& options,
               const std::function<void(Stack&, AdamW&)>& program) {
  run_ranks(1, [&](const LaunchEnvironment& environment) {
    Stack model(layers);
    Options runtime = options;
    runtime.layout.chunk_numel = kLayerNumel;
    runtime.environment = environment;
    AdamW optimizer(model, {}, runtime);
    program(model, optimizer);
  });
}

void run_backward(Stack& model) {
  const auto layers = static_cast<int>(model.layers.size());
  model.forward(at::ones({2, kLayerSide}), in_order(layers)).sum().backward();
}

TEST_F(Training, MoreThanTheBlocksHoldIsNotGathered) {
  run_stack(3, {.layout = {.rcache_blocks = 2}}, [](Stack& model, AdamW& optimizer) {
    const std::vector<at::Tensor> parameters = model.parameters();
    {
      const Gathered guard = gathered({parameters[0], parameters[1]});
      EXPECT_THROW(gathered({parameters[2]}), Error);
      EXPECT_THROW(optimizer.step(), Error);
    }
    EXPECT_NO_THROW(gathered({parameters[2]}));
  });
}

TEST_F(Training, AParameterReadBetweenBackwardAndAnImmediateStepIsRefused) {
  const auto read_between = [](Stack& model, AdamW& optimizer) {
    run_backward(model);
    const at::NoGradGuard no_grad;
    model.layers[0]->weight.clone();  // its chunk has left the only block
    optimizer.step();
  };
  Options options{.layout = {.rcache_blocks = 1}};
  EXPECT_NO_THROW(run_stack(2, options, read_between));
  options.update = UpdateMode::kImmediate;
  EXPECT_THAT(message_of([&] { run_stack(2, options, read_between); }),
              HasSubstr("read them after step()"));
}

// Groups that elixird was told in a step's first backward pass may be others in its second.
TEST_F(Training, GroupsMayBeAddedWhereGradientsOfAnEarlyStepWereDropped) {
  uint64_t weights[2];
  for (const bool early : {false, true}) {
    const UpdateMode update = early ? UpdateMode::kEarly : UpdateMode::kDeferred;
    run_stack(2, {.update = update}, [&](Stack& model, AdamW& optimizer) {
      for (int step = 0; step < 3; ++step) {
        run_backward(model);
        if (step == 1) {
          optimizer.zero_grad();
          optimizer.add_param_group({{model.layers[1]->weight}, 0.5});
          run_backward(model);
        }
        optimizer.step();
      }
      weights[early] = optimizer.weights_xxh64();
    });
  }
  EXPECT_EQ(weights[0], weights[1]);
}

// ---- what is refused ----

struct Refusal {
  void (*change)(TrainingPlan&);
  const char* text;
  std::optional<UpdateMode> update = {};
};

TEST_F(Training, WhatContradictsItselfIsRefused) {
  constexpr UpdateMode kImmediate = UpdateMode::kImmediate;
  constexpr Refusal kRefusals[] = {
      {[](TrainingPlan& plan) { plan.lr = -1; }, "lr = -1"},
      {[](TrainingPlan& plan) { plan.clip_norm = 0; }, "clip_norm = 0"},
      {[](TrainingPlan& plan) { plan.clip_norm = -1; }, "greater than 0"},
      {[](TrainingPlan& plan) { plan.accumulate = 0; },
       "accumulate = 0: a step has 1 to 65536 backward passes"},
      {[](TrainingPlan& plan) { plan.dtype = ComputeType::kFp16; }, "FP16 without a loss scale"},
      {[](TrainingPlan& plan) {
         plan.ranks = 2;
         plan.exchange = shm::Exchange::kHost;
         plan.gpu_state_share = 0.5;
       },
       "--exchange collective"},
      {[](TrainingPlan& plan) {
         plan.rcache_blocks = 3;
         plan.strategy = Strategy::kZero3;
       },
       "leave out rcache_blocks"},
      {[](TrainingPlan& plan) { plan.clip_norm = 1; }, "use early or deferred updates", kImmediate},
      {[](TrainingPlan& plan) { plan.dynamic_loss_scale = DynamicLossScale{}; },
       "a dynamic loss scale", kImmediate},
      {[](TrainingPlan& plan) { plan.empty_backward = true; }, "zero_grad()", kImmediate},
      {[](TrainingPlan& plan) {
         plan.accumulate = 2;
         plan.declares = false;
       },
       "set accumulate", kImmediate}};
  for (const Refusal& refusal : kRefusals) {
    TrainingPlan plan;
    plan.steps = 1;
    plan.update = refusal.update;
    refusal.change(plan);
    EXPECT_THAT(message_of([&] { train_through_elixird(plan); }), HasSubstr(refusal.text));
  }
}

TEST_F(Training, ParametersOfSeveralTypesAreRefusedByName) {
  Stack mixed(4);
  mixed.layers[2]->weight.set_data(mixed.layers[2]->weight.to(at::kHalf));
  EXPECT_THAT(message_of([&] { AdamW optimizer(mixed); }),
              HasSubstr("parameter 'layer2.weight' is c10::Half and 'layer0.weight' is float"));
}

}  // namespace
}  // namespace elixir::test
