#include "planner/simulate/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <map>
#include <numeric>
#include <random>

#include "planner/simulate/servers.h"
#include "tests/planner/sanitized.h"

namespace elixir::planner {
namespace {

using ::testing::HasSubstr;

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
  const Result<StepTimes> times = simulate_step(model, spans);
  EXPECT_TRUE(times.ok()) << times.status().message();
  return times.ok() ? *times : StepTimes();
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

TEST(SimulateStep, IsBoundByUploads) {
  StepModel model = layers(10, 1e-4, 3);
  model.rates.h2d_bytes = 1e8;  // 20 ms a chunk
  const StepTimes times = simulated(model);
  EXPECT_EQ(times.busiest, Leg::kH2d);
  EXPECT_NEAR(times.h2d_s, 17 * 0.02, 1e-9);
  // The last operators need nothing more; otherwise uploads never wait.
  EXPECT_GE(times.step_s, times.h2d_s);
  EXPECT_LE(times.step_s, times.h2d_s + 0.001);
}

TEST(SimulateStep, IsBoundByDownloads) {
  StepModel model = layers(10, 1e-4, 10);
  model.rates.d2h_bytes = 1e8;
  const StepTimes times = simulated(model);
  EXPECT_EQ(times.busiest, Leg::kD2h);
  EXPECT_NEAR(times.d2h_s, 10 * 0.02, 1e-9);
  EXPECT_GE(times.step_s, times.d2h_s);
  EXPECT_LE(times.step_s, times.d2h_s + 11 * 1e-4 + 1e-9);  // forward and the first of backward
}

TEST(SimulateStep, IsBoundByBothDirectionsTogether) {
  StepModel model = layers(100, 1e-6, 2);
  model.rates.h2d_bytes = model.rates.d2h_bytes = 1e9;
  model.rates.joint_bytes = 1e8;
  const StepTimes times = simulated(model);
  const double moved_s = static_cast<double>(times.h2d_bytes + times.d2h_bytes) / 1e8;
  EXPECT_GE(times.step_s, moved_s - 1e-9);
  EXPECT_LE(times.step_s, 1.02 * moved_s);
}

TEST(SimulateStep, IsBoundByUpdates) {
  for (const UpdateMode update : {UpdateMode::kImmediate, UpdateMode::kDeferred}) {
    StepModel model = layers(50, 1e-4, 50);
    model.rates.cpu_update_numel = 1e8;  // 10 ms a chunk
    model.runtime.update = update;
    const StepTimes times = simulated(model);
    EXPECT_EQ(times.busiest, Leg::kUpdate);
    EXPECT_NEAR(times.update_s, 0.5, 1e-9);
    EXPECT_GE(times.step_s, times.update_s);
    EXPECT_LE(times.step_s, times.update_s + 0.0101);
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

TEST(SimulateStep, StreamsTheStatesOfSwingChunks) {
  StepModel model = layers(6, 0.01, 6);
  model.chunks[0].placement = model.chunks[3].placement = Placement::kStreamed;
  model.rates.h2d_bytes = model.rates.d2h_bytes = 1e10;
  model.rates.cpu_update_numel = 1e8;
  model.rates.gpu_update_numel = 1e10;
  const StepTimes times = simulated(model);
  const uint64_t moved = 2 * 14 * kNumel;
  EXPECT_EQ(times.h2d_bytes, moved + 6 * static_cast<uint64_t>(kBytes));
  EXPECT_EQ(times.d2h_bytes, moved + 4 * static_cast<uint64_t>(kBytes));
  EXPECT_NEAR(times.update_s, 4 * 0.01, 1e-9);
  EXPECT_NEAR(times.compute_s, 12 * 0.01 + 2e-4, 1e-9);
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
  model.runtime.update = static_cast<UpdateMode>(random() % 3);
  model.runtime.host_ahead = random() % 2 == 0;
  if (random() % 3 == 0) model.runtime.fetch_ahead = random() % 3;
  model.runtime.evictions_copy_down = random() % 4 == 0;
  model.runtime.grad_blocks = model.chunks.size() % 4;
  if (random() % 4 == 0) model.runtime.copies_hidden = unit();
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

TEST(SimulateStep, GivesEqualTimesForEqualModels) {
  std::mt19937 random(2);
  for (int i = 0; i < 100; ++i) {
    const StepModel model = random_model(random);
    std::vector<StepSpan> spans;
    const StepTimes a = simulated(model), b = simulated(model, &spans);
    EXPECT_EQ(a.step_s, b.step_s);
    EXPECT_EQ(a.h2d_s, b.h2d_s);
    EXPECT_EQ(a.update_s, b.update_s);
  }
}

// Anomalies exist where a queue's order changes (Graham 1969); they are small.
TEST(SimulateStep, IsNotSlowerOnAFasterMachine) {
  std::mt19937 random(3);
  double worst = 0;
  for (int i = 0; i < 2000; ++i) {
    StepModel model = random_model(random);
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
    EXPECT_THAT(operators, ::testing::Each(1));
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
  StepModel model = layers(4, 0.01, 1);
  model.operators[2].chunks = {0, 1};
  Result<StepTimes> times = simulate_step(model);
  ASSERT_FALSE(times.ok());
  EXPECT_EQ(times.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(times.status().message(), HasSubstr("needs 2 chunks"));
  model.operators[2].chunks = {4};
  EXPECT_THAT(simulate_step(model).status().message(), HasSubstr("chunk 4 of 4"));
  model.operators[2] = {0.01, {0}, {9}};
  EXPECT_THAT(simulate_step(model).status().message(), HasSubstr("chunk 9 of 4"));
  model.operators[2] = {-1, {0}, {}};
  EXPECT_FALSE(simulate_step(model).ok());
  model.operators[2] = {std::nan(""), {0}, {}};
  EXPECT_FALSE(simulate_step(model).ok());
  model = layers(4, 0.01, 1);
  model.ranks = 0;
  EXPECT_FALSE(simulate_step(model).ok());
  model.ranks = 1;
  model.rates.h2d_bytes = -1;
  EXPECT_FALSE(simulate_step(model).ok());
}

TEST(SimulateStep, EndsWithoutOperators) {
  EXPECT_EQ(simulated(StepModel()).step_s, 0);
  StepModel model = layers(2, 0.01, 0);
  for (StepOperator& op : model.operators) op.chunks.clear();
  EXPECT_NEAR(simulated(model).step_s, 0.04, 1e-9);
}

TEST(SimulateStep, TakesMillisecondsForThousandsOfOperators) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitized";
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

// ---- the link ----

TEST(Link, SharesTheJointLimit) {
  Link link({.up = 10, .down = 4, .joint = 12});
  link.line(Link::kUp).push({.amount = 100});
  ASSERT_TRUE(link.start(0));
  EXPECT_DOUBLE_EQ(link.line(Link::kUp).end_s, 10);
  link.line(Link::kDown).push({.amount = 8, .latency_s = 1});
  ASSERT_TRUE(link.start(5));  // now 8 up, 4 down
  EXPECT_DOUBLE_EQ(link.line(Link::kUp).end_s, 5 + 50.0 / 8);
  EXPECT_DOUBLE_EQ(link.line(Link::kDown).end_s, 8);
  link.finish(Link::kDown, 8);  // 26 are left
  EXPECT_DOUBLE_EQ(link.line(Link::kUp).end_s, 8 + 2.6);
  EXPECT_FALSE(link.start(8));
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

TEST(LinkDeathTest, ACopyDoesNotEndBeforeItsTime) {
  Link link({.up = 1, .down = 1});
  link.line(Link::kUp).push({.amount = 2});
  ASSERT_TRUE(link.start(0));
  EXPECT_DEATH(link.finish(Link::kUp, 1), "ends at 2 s, and it is 1 s");
}

}  // namespace
}  // namespace elixir::planner
