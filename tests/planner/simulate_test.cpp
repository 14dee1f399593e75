#include "planner/simulate/simulate.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <map>
#include <random>

#include "base/region_plan.h"
#include "planner/simulate/servers.h"
#include "tests/support/matchers.h"
#include "tests/support/sanitized.h"

namespace elixir::planner {
namespace {

constexpr uint64_t kNumel = 1'000'000;
constexpr double kBytes = 2e6;  // of a chunk

// A stack of layers of one chunk each: forward, then backward, each operator op_s.
StepModel layers(uint32_t n, double op_s, uint32_t blocks) {
  StepModel model;
  model.chunk_numel = kNumel;
  model.chunks.assign(n, {Placement::kCpu, kNumel, false});
  for (uint32_t i = 0; i < n; ++i) model.operators.push_back({op_s, {i}, {}});
  model.backward_begin = n;
  for (uint32_t i = n; i-- > 0;) model.operators.push_back({op_s, {i}, {i}});
  model.rcache_blocks = blocks;
  return model;
}

StepTimes simulated(const StepModel& model, std::vector<StepSpan>* spans = nullptr) {
  return must(simulate_step(model, spans));
}

// ---- one leg binds ----

TEST(SimulateStep, TakesWhatComputeTakesWhereAllElseTakesNoTime) {
  const StepTimes times = simulated(layers(10, 0.01, 2));
  EXPECT_NEAR(times.step_s, 0.2, 1e-12);
  EXPECT_NEAR(times.compute_s, 0.2, 1e-12);
  EXPECT_NEAR(times.exposed_s, 0, 1e-12);
  EXPECT_EQ(times.busiest, Leg::kCompute);
  EXPECT_EQ(times.gathers, 18u);  // 2 n - b
  EXPECT_EQ(times.h2d_bytes, 18 * static_cast<uint64_t>(kBytes));
  EXPECT_EQ(times.d2h_bytes, 10 * static_cast<uint64_t>(kBytes));
}

struct Bound {
  const char* name;
  void (*change)(StepModel* model);
  Leg busiest;
  double busy_s;    // that leg's
  double beside_s;  // at most, of a step
};
constexpr Bound kBounds[] = {
    // 20 ms a chunk. The last operators need nothing more; otherwise uploads never wait.
    {"uploads",
     [](StepModel* model) {
       model->rcache_blocks = 3;
       model->rates.h2d_bytes = 1e8;
     },
     Leg::kH2d, 17 * 0.02, 0.001},
    // Forward and the first of backward.
    {"downloads", [](StepModel* model) { model->rates.d2h_bytes = 1e8; }, Leg::kD2h, 10 * 0.02,
     11 * 1e-4 + 1e-9},
    // 50 ms a chunk.
    {"immediate updates",
     [](StepModel* model) {
       model->rates.cpu_update_numel = 2e7;
       model->runtime.update = UpdateMode::kImmediate;
     },
     Leg::kUpdate, 10 * 0.05, 0.0021},
    {"deferred updates",
     [](StepModel* model) {
       model->rates.cpu_update_numel = 2e7;
       model->runtime.update = UpdateMode::kDeferred;
     },
     Leg::kUpdate, 10 * 0.05, 0.0021}};

TEST(SimulateStep, IsBoundByItsBusiestLeg) {
  for (const Bound& bound : kBounds) {
    SCOPED_TRACE(bound.name);
    StepModel model = layers(10, 1e-4, 10);
    bound.change(&model);
    const StepTimes times = simulated(model);
    const double busy_s = bound.busiest == Leg::kH2d   ? times.h2d_s
                          : bound.busiest == Leg::kD2h ? times.d2h_s
                                                       : times.update_s;
    EXPECT_EQ(times.busiest, bound.busiest);
    EXPECT_NEAR(busy_s, bound.busy_s, 1e-9);
    EXPECT_GE(times.step_s, busy_s);
    EXPECT_LE(times.step_s, busy_s + bound.beside_s);
  }
}

// Five of ten layers send activations of `bytes`: every second one, the first included.
StepModel sending_layers(double bytes) {
  StepModel model = layers(10, 0.01, 10);
  for (uint32_t i = 0; i < 10; i += 2) model.parcels.push_back({i, 19 - i, bytes});
  model.parcels_of_pass = 5;
  return model;
}

TEST(SimulateStep, SendsActivationsWhileOperatorsRun) {
  // Four parcels, each as long on the link as two operators: nothing waits.
  StepModel model = sending_layers(2e6);
  model.rates.h2d_bytes = model.rates.d2h_bytes = 1e9;
  const StepTimes beside = simulated(layers(10, 0.01, 10));
  StepTimes times = simulated(model);
  EXPECT_NEAR(times.step_s, 0.2, 0.02 + 1e-9);  // chunks come first
  EXPECT_EQ(times.d2h_bytes, beside.d2h_bytes + 4 * 2'000'000);
  EXPECT_EQ(times.h2d_bytes, beside.h2d_bytes + 4 * 2'000'000);
  // Two and a half times as long as two operators: forward waits for three of them, backward for
  // all that come up.
  model = sending_layers(50e6);
  model.chunks.assign(10, {Placement::kGpu, kNumel, false});
  model.rates.h2d_bytes = model.rates.d2h_bytes = 1e9;
  times = simulated(model);
  EXPECT_NEAR(times.step_s, 0.2 + 4 * 0.03 + 4 * 0.03, 1e-9);
  EXPECT_NEAR(times.d2h_s, 0.2, 1e-9);
  EXPECT_NEAR(times.compute_s, 0.2, 1e-9);
}

TEST(SimulateStep, ChunksGoBeforeActivations) {
  // A parcel takes longer on the link than all of forward, and chunks come over the same link.
  const double alone_s = simulated(layers(10, 0.01, 10)).step_s;
  StepModel model = sending_layers(0);
  for (StepParcel& parcel : model.parcels) parcel.bytes = 0;
  model.parcels[0].bytes = 8.0 * static_cast<double>(kActivationPieceBytes);
  model.rates.h2d_bytes = model.rates.d2h_bytes = 2e10;
  const double piece_s = static_cast<double>(kActivationPieceBytes) / 2e10;
  const double waits_s = 8 * piece_s - 0.02;
  EXPECT_LT(simulated(model).step_s, alone_s + 2 * std::max(0.0, waits_s) + 4 * piece_s);
}

TEST(SimulateStep, EachPassSendsItsOwn) {
  StepModel model = sending_layers(1e6);
  const StepModel once = model;
  const auto n = static_cast<uint32_t>(once.operators.size());
  model.operators.insert(model.operators.end(), once.operators.begin(), once.operators.end());
  for (const StepParcel& parcel : once.parcels) {
    model.parcels.push_back({n + parcel.put_after, n + parcel.get_before, parcel.bytes});
  }
  StepModel without = model;
  without.parcels.clear();
  EXPECT_EQ(simulated(model).h2d_bytes - simulated(without).h2d_bytes, 2 * 4 * 1'000'000U);
  EXPECT_EQ(simulated(model).d2h_bytes - simulated(without).d2h_bytes, 2 * 4 * 1'000'000U);
  model.parcels_of_pass = 3;
  expect_refused(simulate_step(model).status(), Code::kInvalidArgument, {"passes of 3"});
  model.parcels_of_pass = 5;
  model.parcels[0].get_before = model.parcels[0].put_after;
  expect_refused(simulate_step(model).status(), Code::kInvalidArgument, {"a parcel of"});
}

TEST(SimulateStep, IsBoundByBothDirectionsTogetherOrByHostMemory) {
  for (const bool memory : {false, true}) {
    StepModel model = layers(100, 1e-6, 2);
    model.rates.h2d_bytes = model.rates.d2h_bytes = 1e9;
    if (memory) {
      model.rates.cpu_update_numel = 1e8;
      model.rates.dram_bytes = 5e8;
    } else {
      model.rates.joint_bytes = 1e8;
    }
    const StepTimes times = simulated(model);
    const auto moved_bytes = static_cast<double>(times.h2d_bytes + times.d2h_bytes);
    const double bound_s =
        memory ? (moved_bytes + 100.0 * kNumel * model.update_bytes) / 5e8 : moved_bytes / 1e8;
    EXPECT_GE(times.step_s, bound_s - 1e-9);
    EXPECT_LE(times.step_s, 1.02 * bound_s);
  }
}

TEST(SimulateStep, AddsUpWhereNothingOverlaps) {
  StepModel model = layers(8, 0.01, 2);
  model.rates.h2d_bytes = 1e9;
  model.rates.d2h_bytes = 2e9;
  model.rates.cpu_update_numel = 5e8;
  model.runtime.update = UpdateMode::kSync;
  model.runtime.fetch_ahead = 0;
  const StepTimes times = simulated(model);
  // Downloads hide behind the next operator, save the last one.
  EXPECT_NEAR(times.step_s, 16 * 0.01 + 14 * 2e-3 + 1e-3 + 8 * 2e-3, 1e-9);
}

// Chunks 1 to 3 hold one parameter: they come as one, their gradients and updates one by one.
TEST(SimulateStep, GathersARunOfChunksAsOneIntoALongBlock) {
  StepModel model = layers(2, 0.01, 2);
  model.chunks.assign(5, {Placement::kCpu, kNumel, false});
  model.chunks[1].run = 3;
  model.chunks[2].run = model.chunks[3].run = 0;
  model.long_blocks = 1;
  model.operators = {
      {0.01, {0}},     {0.01, {1}}, {0.01, {4}}, {0.01, {4}, {4}}, {0.01, {1}, {3, 2, 1}},
      {0.01, {0}, {0}}};
  model.backward_begin = 3;
  model.rates.h2d_bytes = 1e9;
  model.rates.d2h_bytes = 2e9;
  model.rates.cpu_update_numel = 5e8;
  model.runtime.update = UpdateMode::kSync;
  model.runtime.fetch_ahead = 0;
  const StepTimes times = simulated(model);
  EXPECT_EQ(times.gathers, 3u);
  EXPECT_EQ(times.h2d_bytes, 5 * static_cast<uint64_t>(kBytes));
  EXPECT_EQ(times.d2h_bytes, 5 * static_cast<uint64_t>(kBytes));
  EXPECT_NEAR(times.step_s, 6 * 0.01 + 5 * 2e-3 + 1e-3 + 5 * 2e-3, 1e-9);
  // Another one as long takes its block, and each loses it once.
  model.operators.insert(model.operators.begin() + 2, {0.01, {5}});
  model.chunks.resize(8, {Placement::kCpu, kNumel, false});
  model.chunks[5].run = 3;
  model.chunks[6].run = model.chunks[7].run = 0;
  model.backward_begin = 4;
  EXPECT_EQ(simulated(model).gathers, 5u);
  model.long_blocks = 2;
  EXPECT_EQ(simulated(model).gathers, 4u);
  // Each is fetched ahead when its update is done, whatever waits for a block of the other kind.
  model.runtime.fetch_ahead = UINT32_MAX;
  model.runtime.update = UpdateMode::kDeferred;
  EXPECT_EQ(simulated(model).gathers, 4u);
  model.long_blocks = 0;
  EXPECT_THAT(simulate_step(model).status().message(), HasSubstr("0 long blocks"));
}

TEST(SimulateStep, HidesAllThatFits) {
  StepModel model = layers(24, 0.01, 6);
  model.rates.h2d_bytes = model.rates.d2h_bytes = 1e9;
  model.rates.cpu_update_numel = 2e8;  // 5 ms a chunk
  const StepTimes times = simulated(model);
  // The first chunk's way: its gradient down, its update, up again.
  EXPECT_NEAR(times.step_s, 48 * 0.01 + 2e-3 + 5e-3 + 2e-3, 1e-9);
}

// ---- placements and exchanges ----

TEST(SimulateStep, LeavesChunksPlacedOnTheGpuWhereTheyAre) {
  StepModel model = layers(10, 0.01, 2);
  for (StepChunk& chunk : model.chunks) chunk.placement = Placement::kGpu;
  model.rates = {.h2d_bytes = 1, .d2h_bytes = 1, .gpu_update_numel = 1e9};
  const StepTimes times = simulated(model);
  EXPECT_EQ(times.h2d_bytes + times.d2h_bytes + times.gathers, 0u);
  EXPECT_NEAR(times.step_s, 0.2 + 0.01, 1e-9);
  EXPECT_NEAR(times.exposed_s, 0, 1e-9);
}

TEST(SimulateStep, CopiesEveryRanksWholeChunkWithTheHostExchange) {
  StepModel model = layers(10, 0.01, 4);
  model.ranks = 4;
  const StepTimes times = simulated(model);
  EXPECT_EQ(times.h2d_bytes, 4 * 16 * static_cast<uint64_t>(kBytes));
  EXPECT_EQ(times.d2h_bytes, 4 * 10 * static_cast<uint64_t>(kBytes));
  EXPECT_EQ(times.g2g_bytes, 0u);
}

TEST(SimulateStep, GathersAndReducesBetweenRanksWithTheCollectiveOne) {
  StepModel model = layers(10, 1e-5, 4);
  model.ranks = 4;
  model.collective = true;
  model.rates.g2g_bytes = 1e8;
  const StepTimes times = simulated(model);
  EXPECT_EQ(times.h2d_bytes, 16 * static_cast<uint64_t>(kBytes));
  EXPECT_EQ(times.d2h_bytes, 10 * static_cast<uint64_t>(kBytes));
  EXPECT_EQ(times.g2g_bytes, 26 * static_cast<uint64_t>(kBytes));
  EXPECT_EQ(times.busiest, Leg::kG2g);
  EXPECT_NEAR(times.step_s, 26 * 0.02, 0.001);
}

TEST(SimulateStep, MovesNothingThroughTheHostForStatesOnTheGpus) {
  StepModel model = layers(4, 0.01, 4);
  model.ranks = 2;
  model.collective = true;
  for (StepChunk& chunk : model.chunks) chunk.placement = Placement::kGpu;
  model.rates.gpu_update_numel = 4e8;
  const StepTimes times = simulated(model);
  EXPECT_EQ(times.d2h_bytes, 0u);
  EXPECT_EQ(times.h2d_bytes, 0u);
  EXPECT_GT(times.g2g_bytes, 0u);
  EXPECT_EQ(times.update_s, 0);
}

// A gradient goes down as any, and up with the states; the GPU's update is beside the operators.
TEST(SimulateStep, BringsStatesAndGradientsOfSwingChunksUpAndStatesDown) {
  StepModel model = layers(6, 0.01, 6);
  model.chunks[0].placement = model.chunks[3].placement = Placement::kSwing;
  model.rates.h2d_bytes = model.rates.d2h_bytes = 1e10;
  model.rates.cpu_update_numel = 1e8;
  model.rates.gpu_update_numel = 1e10;
  const StepTimes times = simulated(model);
  const uint64_t moved = 2 * 14 * kNumel, gradients = 2 * 2 * kNumel;
  EXPECT_EQ(times.h2d_bytes, moved + gradients + 6 * static_cast<uint64_t>(kBytes));
  EXPECT_EQ(times.d2h_bytes, moved + 6 * static_cast<uint64_t>(kBytes));
  EXPECT_NEAR(times.update_s, 4 * 0.01, 1e-9);
  EXPECT_NEAR(times.compute_s, 12 * 0.01, 1e-9);
}

// ---- gradients in blocks ----

// Each layer's gradient comes in two parts, behind two operators.
StepModel halves(uint32_t n, double op_s) {
  StepModel model = layers(n, op_s, n);
  model.operators.resize(n);
  for (uint32_t i = n; i-- > 0;) {
    for (int half = 0; half < 2; ++half) {
      model.operators.push_back({op_s / 2, {i}, {i}, {kNumel / 2}});
    }
  }
  return model;
}

TEST(SimulateStep, BringsAChunksGradientsDownInOneCopyOutOfItsBlock) {
  StepModel model = halves(10, 0.01);
  model.rates.d2h_bytes = 1e9;
  model.rates.copy_latency_s = 1e-3;
  model.ranks = 2;
  const StepTimes apart = simulated(model);
  model.runtime.grad_blocks = kGradBlocks;
  const StepTimes together = simulated(model);
  EXPECT_EQ(apart.d2h_bytes, together.d2h_bytes);
  EXPECT_NEAR(apart.d2h_s, 20 * (2e-3 + 1e-3), 1e-9);
  EXPECT_NEAR(together.d2h_s, 10 * (4e-3 + 1e-3), 1e-9);
}

TEST(SimulateStep, WaitsForABlockWhereDownloadsAreSlow) {
  StepModel model = layers(10, 1e-3, 10);
  model.rates.d2h_bytes = 1e8;  // 20 ms a chunk
  const auto backward_begins = [&] {
    std::vector<StepSpan> spans;
    simulated(model, &spans);
    std::vector<double> begins_s;
    for (const StepSpan& span : spans) {
      const bool compute = span.row == StepSpan::Row::kCompute;
      if (compute && span.index >= model.backward_begin) begins_s.push_back(span.begin_s);
    }
    return begins_s;
  };
  model.runtime.grad_blocks = kGradBlocks;
  const std::vector<double> throttled_s = backward_begins();
  ASSERT_EQ(throttled_s.size(), 10u);
  // The third gradient has a block when the first is down, and so on.
  EXPECT_NEAR(throttled_s[2] - throttled_s[0], 2e-3, 1e-9);
  EXPECT_NEAR(throttled_s[3] - throttled_s[0], 1e-3 + 0.02, 1e-9);
  for (size_t i = 4; i < throttled_s.size(); ++i) {
    EXPECT_NEAR(throttled_s[i] - throttled_s[i - 1], 0.02, 1e-9) << i;
  }
  model.runtime.grad_blocks = 0;  // nothing keeps them back
  const std::vector<double> free_s = backward_begins();
  EXPECT_NEAR(free_s[9] - free_s[0], 9e-3, 1e-9);
}

TEST(SimulateStep, GradientsOfMoreChunksThanBlocksGoDownAndComeUpAgain) {
  StepModel model = layers(3, 0.01, 3);
  model.operators.resize(3);
  for (int half = 0; half < 2; ++half) {  // 2, 1, 0, 2, 1, 0
    for (uint32_t i = 3; i-- > 0;) {
      model.operators.push_back({0.01, {i}, {i}, {kNumel / 2}});
    }
  }
  model.runtime.grad_blocks = 2;
  const auto bytes = static_cast<uint64_t>(kBytes);
  const StepTimes times = simulated(model);
  // Chunk 2's first half makes room for chunk 0's, chunk 1's for chunk 2's second half.
  EXPECT_EQ(times.d2h_bytes, (3 + 2) * bytes);
  EXPECT_EQ(times.h2d_bytes, (3 + 2) * bytes);
  model.runtime.grad_blocks = 3;
  EXPECT_EQ(simulated(model).d2h_bytes, 3 * bytes);
}

TEST(SimulateStep, EveryRoundOfGradientsGoesDown) {
  StepModel model = halves(4, 0.01);
  const std::vector<StepOperator> once = model.operators;
  model.operators.insert(model.operators.end(), once.begin(), once.end());
  for (const bool collective : {false, true}) {
    model.collective = collective;
    model.ranks = collective ? 2 : 1;
    for (const uint32_t blocks : {0u, 2u}) {
      model.runtime.grad_blocks = blocks;
      EXPECT_EQ(simulated(model).d2h_bytes, 2 * 4 * static_cast<uint64_t>(kBytes));
    }
  }
}

// ---- policy paper ----

TEST(SimulateStep, ChargesCopiesThatAreNotHidden) {
  StepModel model = layers(20, 0.01, 20);
  model.rates.h2d_bytes = model.rates.d2h_bytes = 1e9;  // 2 ms a chunk: all could be hidden
  model.runtime.update = UpdateMode::kSync;
  const double hidden_s = simulated(model).step_s;
  model.runtime.copies_hidden = 0.25;
  const StepTimes times = simulated(model);
  EXPECT_LT(hidden_s, 0.4 + 0.005);
  EXPECT_NEAR(times.step_s, 0.4 + 0.75 * (times.h2d_s + times.d2h_s), 0.005);
}

TEST(SimulateStep, CopiesDownWhatIsEvictedAndReturns) {
  StepModel model = layers(10, 0.01, 4);
  model.runtime.evictions_copy_down = true;
  const StepTimes times = simulated(model);
  // 2 * misses move in all: those that come again in backward go down as parameters, each chunk
  // once as gradient.
  EXPECT_EQ(times.h2d_bytes, 16 * static_cast<uint64_t>(kBytes));
  EXPECT_EQ(times.d2h_bytes, 16 * static_cast<uint64_t>(kBytes));
}

TEST(SimulateStep, WaitsWhereNothingIsBroughtAhead) {
  StepModel model = layers(10, 0.01, 4);
  model.rates.h2d_bytes = 1e9;
  const double ahead_s = simulated(model).step_s;
  model.runtime.fetch_ahead = 1;
  const double one_s = simulated(model).step_s;
  model.runtime.fetch_ahead = 0;
  EXPECT_NEAR(simulated(model).step_s, 0.2 + 16 * 2e-3, 1e-9);
  EXPECT_NEAR(one_s, 0.2 + 2e-3, 1e-9);
  EXPECT_NEAR(ahead_s, 0.2 + 2e-3, 1e-9);
}

// ---- early updates ----

// Ten layers, all in blocks, whose updates take as long as forward and backward, and nothing else
// takes time. Out of place an update takes kOutOfPlace_s.
constexpr double kOutOfPlace_s = 0.02 / kEarlyUpdateShare;
StepModel as_long_as_updates(uint32_t spare_slots) {
  StepModel model = layers(10, 0.01, 10);
  model.rates.cpu_update_numel = 5e7;
  model.runtime.update = UpdateMode::kEarly;
  model.runtime.spare_slots = spare_slots;
  return model;
}

TEST(SimulateStep, UpdatesUnderBackwardAsManyChunksAsThereAreSpareSlots) {
  // Layer i of the next forward waits for i + 1 updates, as far as chunks up to i are deferred.
  EXPECT_NEAR(simulated(as_long_as_updates(0)).step_s, 10 * 0.02 + 0.01 + 0.1, 1e-9);
  // The last layers' gradients are the first, and while one chunk is updated two more are complete:
  // chunks 9 and 7, then 5 and 3, all before the commit. Layers 8 and 9 are the last to wait.
  EXPECT_NEAR(simulated(as_long_as_updates(2)).step_s, 8 * 0.02 + 2 * 0.01 + 0.1, 1e-9);
  EXPECT_NEAR(simulated(as_long_as_updates(4)).step_s, 6 * 0.02 + 2 * 0.01 + 0.1, 1e-9);
}

TEST(SimulateStep, TheCommitWaitsForTheEarlyUpdateInHandAndForNoOther) {
  for (const uint32_t slots : {5u, 10u}) {
    std::vector<StepSpan> spans;
    const StepTimes times = simulated(as_long_as_updates(slots), &spans);
    // From the first gradient on; backward has 0.09 s left then. The others, every second chunk,
    // are deferred, whether there was a slot or none.
    const double waited_s = 5 * kOutOfPlace_s - 0.09;
    ASSERT_GT(waited_s, 0);
    EXPECT_NEAR(times.step_s, waited_s + 5 * 0.02 + 2 * 0.01 + 0.1, 1e-9);
    EXPECT_NEAR(times.update_s, 5 * 0.02 + 5 * kOutOfPlace_s, 1e-9);
    std::vector<uint32_t> updated;
    for (const StepSpan& span : spans) {
      if (span.row == StepSpan::Row::kUpdate) updated.push_back(span.index);
    }
    // The step ends with backward, so that chunk 1's reaches into the next one.
    EXPECT_THAT(updated, ElementsAre(1, 0, 2, 4, 6, 8, 9, 7, 5, 3, 1));
  }
}

TEST(SimulateStep, FetchesWhatWasUpdatedEarlyAsSoonAsTheStepIsCommitted) {
  StepModel model = layers(2, 0.01, 2);
  model.operators[2] = {0.01, {0}, {0}};  // the first chunk's gradient comes first
  model.operators[3] = {0.01, {1}, {1}};
  model.rates.cpu_update_numel = 1.25e8;  // 8 ms a chunk
  EXPECT_NEAR(simulated(model).step_s, 0.04 + 0.008, 1e-9);
  model.runtime.update = UpdateMode::kEarly;
  model.runtime.spare_slots = 1;
  EXPECT_NEAR(simulated(model).step_s, 0.04, 1e-9);
}

TEST(SimulateStep, UpdatesEarlyWithBothExchangesBehindTheLastOfSeveralPasses) {
  const double alone_s = simulated(as_long_as_updates(10)).step_s;
  for (const bool collective : {false, true}) {
    StepModel model = as_long_as_updates(10);
    model.ranks = 2;
    model.collective = collective;
    EXPECT_NEAR(simulated(model).step_s, alone_s, 1e-9);
    const std::vector<StepOperator> once = model.operators;
    model.operators.insert(model.operators.end(), once.begin(), once.end());
    EXPECT_NEAR(simulated(model).step_s, alone_s + 0.2, 1e-9);
  }
}

// ---- in general ----

StepModel random_model(std::mt19937& random) {
  const auto unit = [&] { return static_cast<double>(random() % 1000 + 1) / 1000; };
  StepModel model = layers(4 + random() % 20, 0.02 * unit(), 3);
  model.rcache_blocks = 2 + random() % model.chunks.size();
  for (StepOperator& op : model.operators) {
    op.compute_s *= unit();
    const auto other = static_cast<uint32_t>(random() % model.chunks.size());
    if (random() % 4 == 0 && other != op.chunks[0]) op.chunks.push_back(other);
  }
  for (StepChunk& chunk : model.chunks) chunk.placement = static_cast<Placement>(random() % 8 % 3);
  model.ranks = 1 + random() % 2 * 3;
  model.collective = random() % 2 != 0;
  model.rates = {1e9 * unit(), 1e9 * unit(), random() % 2 == 0 ? 0 : 1.5e9 * unit(),
                 1e9 * unit(), 1e9 * unit(), 1e10 * unit(),
                 1e-5 * unit()};
  model.runtime.update = static_cast<UpdateMode>(random() % 4);
  model.runtime.host_ahead = random() % 2 == 0;
  if (random() % 3 == 0) model.runtime.fetch_ahead = random() % 3;
  model.runtime.evictions_copy_down = random() % 4 == 0;
  model.runtime.grad_blocks = model.chunks.size() % 4;
  if (random() % 4 == 0) model.runtime.copies_hidden = unit();
  if (model.runtime.update == UpdateMode::kEarly) {
    model.runtime.spare_slots = random() % (model.chunks.size() + 1);
  }
  if (random() % 3 == 0) model.rates.dram_bytes = 2e10 * unit();
  return model;
}

// Swing chunks' updates wait for the link in an order in which a little changes much.
StepModel random_model_without_swing(std::mt19937& random) {
  StepModel model = random_model(random);
  for (StepChunk& chunk : model.chunks) {
    if (chunk.placement == Placement::kSwing) chunk.placement = Placement::kCpu;
  }
  return model;
}

TEST(SimulateStep, EndsAndIsNeverShorterThanALeg) {
  std::mt19937 random(1);
  for (int i = 0; i < 3000; ++i) {
    const StepModel model = random_model(random);
    const StepTimes times = simulated(model);
    double compute_s = 0;
    for (const StepOperator& op : model.operators) compute_s += op.compute_s;
    ASSERT_GE(times.compute_s, compute_s * (1 - 1e-9)) << i;
    for (const double leg_s :
         {times.compute_s, times.h2d_s, times.d2h_s, times.g2g_s, times.update_s}) {
      ASSERT_LE(leg_s, times.step_s * (1 + 1e-9)) << i;
    }
    ASSERT_NEAR(times.exposed_s, times.step_s - times.compute_s, 1e-9) << i;
  }
}

void expect_equal(const StepTimes& a, const StepTimes& b) {
  EXPECT_EQ(a.step_s, b.step_s);
  EXPECT_EQ(a.h2d_s, b.h2d_s);
  EXPECT_EQ(a.d2h_s, b.d2h_s);
  EXPECT_EQ(a.update_s, b.update_s);
}

TEST(SimulateStep, IsDeferredWhereThereIsNoSpareSlot) {
  std::mt19937 random(5);
  for (int i = 0; i < 500; ++i) {
    StepModel model = random_model(random);
    model.runtime.spare_slots = 0;
    model.runtime.update = UpdateMode::kDeferred;
    std::vector<StepSpan> deferred_spans, early_spans;
    const StepTimes deferred = simulated(model, &deferred_spans);
    model.runtime.update = UpdateMode::kEarly;
    const StepTimes early = simulated(model, &early_spans);
    expect_equal(early, deferred);
    expect_equal(simulated(model), early);  // without spans, too
    ASSERT_EQ(early_spans.size(), deferred_spans.size());
    for (size_t j = 0; j < early_spans.size(); ++j) {
      EXPECT_EQ(early_spans[j].index, deferred_spans[j].index);
      EXPECT_EQ(early_spans[j].begin_s, deferred_spans[j].begin_s);
      EXPECT_EQ(early_spans[j].end_s, deferred_spans[j].end_s);
    }
  }
}

TEST(SimulateStep, EarlyLosesNoMoreThanUpdatesOutOfPlaceAndTheOneInHand) {
  std::mt19937 random(6);
  double worst = 0;
  int shorter = 0;
  for (int i = 0; i < 2000; ++i) {
    StepModel model = random_model_without_swing(random);
    model.rates.dram_bytes = 0;  // else copies lose to early updates what copies later gain
    model.runtime.update = UpdateMode::kDeferred;
    const StepTimes deferred = simulated(model);
    model.runtime.update = UpdateMode::kEarly;
    model.runtime.spare_slots = 1 + random() % model.chunks.size();
    const StepTimes early = simulated(model);
    const auto updated =
        std::count_if(model.chunks.begin(), model.chunks.end(),
                      [](const StepChunk& chunk) { return chunk.placement == Placement::kCpu; });
    const double in_hand_s =
        deferred.update_s / static_cast<double>(std::max(updated, std::ptrdiff_t{1}));
    const double lost_s =
        (1 / kEarlyUpdateShare - 1) * deferred.update_s + in_hand_s / kEarlyUpdateShare;
    worst = std::max(worst, early.step_s / (deferred.step_s + lost_s));
    shorter += early.step_s < 0.99 * deferred.step_s;
  }
  EXPECT_LT(worst, 1.001);
  EXPECT_GT(shorter, 100);
}

TEST(SimulateStep, IsNoShorterThanWhatHostMemoryMoves) {
  std::mt19937 random(7);
  int bound = 0;
  for (int i = 0; i < 1000; ++i) {
    StepModel model = random_model_without_swing(random);
    model.rates.dram_bytes = 1e6 * static_cast<double>(1 + random() % 1000);
    const StepTimes times = simulated(model);
    auto moved_bytes = static_cast<double>(times.h2d_bytes + times.d2h_bytes);
    for (const StepChunk& chunk : model.chunks) {
      if (chunk.placement != Placement::kCpu) continue;
      moved_bytes += static_cast<double>(chunk.numel * model.update_bytes);
    }
    const double moved_s = moved_bytes / model.rates.dram_bytes;
    ASSERT_GE(times.step_s, (1 - 1e-6) * moved_s) << i;
    bound += times.step_s < 1.1 * moved_s;
  }
  EXPECT_GT(bound, 100);
}

TEST(SimulateStep, HostMemoryThatIsEnoughChangesNothing) {
  std::mt19937 random(8);
  for (int i = 0; i < 500; ++i) {
    StepModel model = random_model(random);
    model.rates.dram_bytes = 0;
    const StepTimes without = simulated(model);
    model.rates.dram_bytes = 1e30;
    const StepTimes with = simulated(model);
    expect_equal(with, without);
  }
}

// Anomalies exist where a queue's order changes (Graham 1969); they are small.
TEST(SimulateStep, IsNotSlowerOnAFasterMachine) {
  std::mt19937 random(3);
  double worst = 0;
  for (int i = 0; i < 2000; ++i) {
    StepModel model = random_model_without_swing(random);
    const double before_s = simulated(model).step_s;
    double* const rates[] = {&model.rates.h2d_bytes,        &model.rates.d2h_bytes,
                             &model.rates.g2g_bytes,        &model.rates.cpu_update_numel,
                             &model.rates.gpu_update_numel, &model.rates.joint_bytes};
    *rates[random() % 6] *= 1.5;
    worst = std::max(worst, simulated(model).step_s / before_s);
  }
  EXPECT_LT(worst, 1.05);
}

// ---- what ran when ----

TEST(SimulateStep, TellsWhatRanWhen) {
  std::mt19937 random(4);
  for (int i = 0; i < 300; ++i) {
    const StepModel model = random_model(random);
    std::vector<StepSpan> spans;
    const StepTimes times = simulated(model, &spans);
    std::map<StepSpan::Row, double> busy_s, end_s;
    std::vector<int> operators(model.operators.size(), 0);
    for (const StepSpan& span : spans) {
      ASSERT_GE(span.begin_s, end_s[span.row] - 1e-9) << i;  // one at a time, in order
      ASSERT_GT(span.end_s, span.begin_s);
      ASSERT_LE(span.end_s, times.step_s + 1e-9);
      end_s[span.row] = span.end_s;
      busy_s[span.row] += span.end_s - span.begin_s;
      if (span.row == StepSpan::Row::kCompute) ++operators.at(span.index);
      if (span.row != StepSpan::Row::kCompute) {
        ASSERT_LT(span.index, model.chunks.size());
      }
    }
    EXPECT_THAT(operators, Each(1));
    using Row = StepSpan::Row;
    EXPECT_NEAR(busy_s[Row::kCompute] + busy_s[Row::kGpuUpdate], times.compute_s, 1e-9);
    EXPECT_NEAR(busy_s[Row::kH2d], times.h2d_s, 1e-9);
    EXPECT_NEAR(busy_s[Row::kD2h], times.d2h_s, 1e-9);
    EXPECT_NEAR(busy_s[Row::kG2g], times.g2g_s, 1e-9);
    EXPECT_NEAR(busy_s[Row::kUpdate], times.update_s, 1e-9);
  }
}

// ---- errors, speed ----

TEST(SimulateStep, RefusesWhatCannotBeRun) {
  const std::pair<void (*)(StepModel*), const char*> kModels[] = {
      {[](StepModel* model) {
         model->operators[2].chunks = {0, 1};
       },
       "needs 2 chunks"},
      {[](StepModel* model) { model->operators[2].chunks = {4}; }, "chunk 4 of 4"},
      {[](StepModel* model) { model->operators[2].gradients = {9}; }, "chunk 9 of 4"},
      {[](StepModel* model) { model->operators[2].compute_s = -1; }, ""},
      {[](StepModel* model) { model->operators[2].compute_s = std::nan(""); }, ""},
      {[](StepModel* model) { model->ranks = 0; }, ""},
      {[](StepModel* model) { model->rates.h2d_bytes = -1; }, ""}};
  for (const auto& [change, says] : kModels) {
    StepModel model = layers(4, 0.01, 1);
    change(&model);
    expect_refused(simulate_step(model).status(), Code::kInvalidArgument, {says});
  }
}

TEST(SimulateStep, EndsWithoutOperators) {
  EXPECT_EQ(simulated(StepModel()).step_s, 0);
  StepModel model = layers(2, 0.01, 0);
  for (StepOperator& op : model.operators) op.chunks.clear();
  EXPECT_NEAR(simulated(model).step_s, 0.04, 1e-9);
}

TEST(SimulateStep, TakesMillisecondsForThousandsOfOperators) {
  if (kSanitized) GTEST_SKIP() << "sanitized";
  StepModel model = layers(200, 1e-3, 50);
  std::vector<StepOperator> operators;
  for (const StepOperator& op : model.operators) {
    for (int i = 0; i < 8; ++i) operators.push_back({op.compute_s / 8, op.chunks, {}});
    operators.back().gradients = op.gradients;
  }
  model.operators = operators;
  model.backward_begin = 1600;
  model.rates = {1e10, 1e10, 1.5e10, 0, 5e8, 1e10, 1e-5};
  ASSERT_EQ(model.operators.size(), 3200u);
  const std::clock_t begin = std::clock();
  constexpr int kTimes = 20;
  for (int i = 0; i < kTimes; ++i) simulated(model);
  const double each_ms = 1e3 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC / kTimes;
  RecordProperty("each_us", static_cast<int>(1e3 * each_ms));
  EXPECT_LT(each_ms, 20);
}

// ---- host memory ----

TEST(HostMemory, SharesTheLinksJointLimit) {
  HostMemory link({.up = 10, .down = 4, .joint = 12});
  link.line(HostMemory::kUp).push({.amount = 100});
  ASSERT_TRUE(link.start(0));
  EXPECT_DOUBLE_EQ(link.line(HostMemory::kUp).end_s, 10);
  link.line(HostMemory::kDown).push({.amount = 8, .latency_s = 1});
  ASSERT_TRUE(link.start(5));  // now 8 up, 4 down
  EXPECT_DOUBLE_EQ(link.line(HostMemory::kUp).end_s, 5 + 50.0 / 8);
  EXPECT_DOUBLE_EQ(link.line(HostMemory::kDown).end_s, 8);
  link.finish(HostMemory::kDown, 8);  // 26 are left
  EXPECT_DOUBLE_EQ(link.line(HostMemory::kUp).end_s, 8 + 2.6);
  EXPECT_FALSE(link.start(8));
}

TEST(HostMemory, TakesTheSumOfBytesForALinkAndWorkersTogether) {
  HostMemory memory({.up = 10, .down = 20, .dram = 10});
  memory.line(HostMemory::kUp).push({.amount = 100});
  memory.line(HostMemory::kUpdate).push({.amount = 10, .memory_bytes = 100});
  ASSERT_TRUE(memory.start(0));
  EXPECT_DOUBLE_EQ(memory.line(HostMemory::kUp).end_s, (100 + 100) / 10);
  EXPECT_DOUBLE_EQ(memory.line(HostMemory::kUpdate).end_s, (100 + 100) / 10);
  memory.line(HostMemory::kDown).push({.amount = 20});
  ASSERT_TRUE(memory.start(8));  // of each 60 are left; now 2.5, 2.5 and 5 a second
  EXPECT_DOUBLE_EQ(memory.line(HostMemory::kDown).end_s, 12);
  EXPECT_DOUBLE_EQ(memory.line(HostMemory::kUp).end_s, 8 + 60 / 2.5);
  memory.finish(HostMemory::kDown, 12);  // 50 are left, at 5 a second
  EXPECT_DOUBLE_EQ(memory.line(HostMemory::kUp).end_s, 22);
  memory.finish(HostMemory::kUp, 22);
  EXPECT_DOUBLE_EQ(memory.line(HostMemory::kUpdate).end_s, 22);
}

TEST(HostMemory, GivesAllToTheOneThatIsLeft) {
  HostMemory memory({.up = 10, .dram = 10});
  memory.line(HostMemory::kUp).push({.amount = 10});
  memory.line(HostMemory::kUpdate).push({.amount = 10, .memory_bytes = 100});
  ASSERT_TRUE(memory.start(0));
  memory.finish(HostMemory::kUp, 2);  // 90 bytes are left, at 10 a second
  EXPECT_DOUBLE_EQ(memory.line(HostMemory::kUpdate).end_s, 11);
}

TEST(LineDeathTest, AJobBeginsAndEndsInItsTurn) {
  Line line;
  EXPECT_DEATH(line.begin(0), "0 jobs wait");
  EXPECT_DEATH(line.finish(), "a job from");
  line.push({});
  line.push({});
  line.begin(0);
  EXPECT_DEATH(line.begin(1), "1 jobs wait while one is in hand");
}

TEST(HostMemoryDeathTest, ACopyDoesNotEndBeforeItsTime) {
  HostMemory link({.up = 1, .down = 1});
  link.line(HostMemory::kUp).push({.amount = 2});
  ASSERT_TRUE(link.start(0));
  EXPECT_DEATH(link.finish(HostMemory::kUp, 1), "ends at 2 s, and it is 1 s");
}

}  // namespace
}  // namespace elixir::planner
