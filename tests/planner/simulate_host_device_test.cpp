// Simulated steps against steps of the runtime, on a HostDevice that emulates links of several
// speeds.

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "client/elixir.h"
#include "planner/choice_names.h"
#include "planner/simulate/simulate.h"
#include "tests/daemon/daemon_process.h"
#include "tests/support/median.h"

namespace elixir::planner {
namespace {

constexpr uint32_t kLayers = 12;
constexpr uint32_t kLongLayers = 2;  // the first ones, in cells that have such
constexpr int kWarmUp = 3, kSteps = 7, kAttempts = 8;
constexpr double kClose = 0.10;

struct Cell {
  std::string name;
  HostLink link;
  uint32_t blocks = 0;
  double gpu_share = 0;
  UpdateMode update = UpdateMode::kDeferred;
  uint32_t chunk_layers = 1;
  double operator_us = 2500;
  int64_t width = 256;       // of a layer
  uint32_t spare_slots = 0;  // with early updates
  // Of each of the first two layers, which then are as much wider in between as they have chunks:
  // longer than a chunk, and so in blocks of their own.
  uint32_t layer_chunks = 1;
  uint32_t long_blocks = 0;
  uint32_t swing_stride = 0;

  uint64_t layer_numel() const { return static_cast<uint64_t>(width * width); }
};

struct Measured {
  double step_s = 0;
  double gpu_update_s = 0;  // what step() takes, where it updates chunks placed on the GPU
  StepStats stats;
};

Measured train(const Cell& cell) {
  torch::nn::Sequential model;
  for (uint32_t i = 0; i < kLayers; ++i) {
    const int64_t in = i == 1 ? cell.layer_chunks * cell.width : cell.width;
    const int64_t out = i == 0 ? cell.layer_chunks * cell.width : cell.width;
    model->push_back(torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false)));
  }
  Options runtime;
  runtime.layout.chunk_numel = cell.chunk_layers * cell.layer_numel();
  runtime.layout.rcache_blocks = cell.blocks;
  runtime.layout.long_blocks = cell.long_blocks;
  runtime.layout.swing_stride = cell.swing_stride;
  runtime.layout.gpu_state_share = cell.gpu_share;
  runtime.link = cell.link;
  runtime.operator_us = cell.operator_us;
  runtime.update = cell.update;
  if (cell.update == UpdateMode::kEarly) runtime.layout.spare_slots = cell.spare_slots;
  AdamW optimizer(*model, {}, runtime);
  const at::Tensor x = at::randn({1, cell.width});
  std::vector<double> steps_s, update_s, rates;
  Measured measured;
  for (int step = 0; step < kWarmUp + kSteps; ++step) {
    model->forward(x).pow(2).mean().backward();
    const int64_t begin_ns = monotonic_ns();
    optimizer.step();
    update_s.push_back(seconds_since(begin_ns));
    measured.stats = optimizer.stats();
    if (step < kWarmUp) continue;
    steps_s.push_back(1e-3 * measured.stats.roofline.step_ms);
    rates.push_back(measured.stats.update_numel_per_s);
  }
  optimizer.synchronize();
  measured.step_s = test::median(steps_s);
  measured.gpu_update_s = test::median(update_s);
  measured.stats.update_numel_per_s = test::median(rates);
  return measured;
}

void add_chunks(const Cell& cell, StepModel* model) {
  model->chunk_numel = cell.chunk_layers * cell.layer_numel();
  const uint32_t n_chunks = kLayers / cell.chunk_layers + kLongLayers * (cell.layer_chunks - 1);
  const auto n_gpu = static_cast<uint32_t>(std::lround(cell.gpu_share * n_chunks));
  for (uint32_t i = 0; i < n_chunks; ++i) {
    const bool swings = cell.swing_stride > 0 && (i + 1) % cell.swing_stride == 0;
    const Placement elsewhere = swings ? Placement::kSwing : Placement::kCpu;
    model->chunks.push_back({i < n_gpu ? Placement::kGpu : elsewhere, model->chunk_numel, false});
  }
  for (uint32_t i = 0; i < kLongLayers * cell.layer_chunks && cell.layer_chunks > 1; ++i) {
    model->chunks[i].run = i % cell.layer_chunks == 0 ? cell.layer_chunks : 0;
  }
}

void add_operators(const Cell& cell, StepModel* model) {
  const double operator_s = 1e-6 * cell.operator_us;
  const auto chunk_of = [&](uint32_t layer) {
    return layer / cell.chunk_layers + std::min(layer, kLongLayers) * (cell.layer_chunks - 1);
  };
  const auto add_gradients = [&](uint32_t layer) {
    for (uint32_t part = model->chunks[chunk_of(layer)].run; part-- > 0;) {
      model->operators.back().gradients.push_back(chunk_of(layer) + part);
      model->operators.back().gradient_numel.push_back(cell.layer_numel());
    }
  };
  for (uint32_t i = 0; i < kLayers; ++i) model->operators.push_back({operator_s, {chunk_of(i)}});
  model->backward_begin = kLayers;
  for (uint32_t i = kLayers - 1; i > 0; --i) {
    model->operators.push_back({operator_s, {chunk_of(i)}});
    add_gradients(i);
  }
  add_gradients(0);  // its inputs need no gradient
}

// The same step, as the simulator sees it.
StepModel model_of(const Cell& cell, const Measured& measured) {
  StepModel model;
  model.dtype_bytes = 4;
  model.state_bytes = 8;  // two moments: the parameter is its own master
  add_chunks(cell, &model);
  add_operators(cell, &model);
  const auto n_chunks = static_cast<uint32_t>(model.chunks.size());
  const auto n_gpu = static_cast<uint32_t>(std::lround(cell.gpu_share * n_chunks));
  model.long_blocks = cell.long_blocks;
  model.rcache_blocks = cell.blocks;
  model.rates = {.h2d_bytes = 1e9 * cell.link.h2d_gb_s,
                 .d2h_bytes = 1e9 * cell.link.d2h_gb_s,
                 .joint_bytes = 1e9 * cell.link.joint_gb_s,
                 .cpu_update_numel = measured.stats.update_numel_per_s,
                 .copy_latency_s = 1e-6 * cell.link.latency_us};
  if (n_gpu > 0) {
    // An operator of HostDevice takes the longer of operator_us and all that was done since the one
    // before, which for the first one is the update.
    model.rates.gpu_update_numel =
        static_cast<double>(n_gpu * model.chunk_numel) / measured.gpu_update_s;
    model.operators[0].compute_s = std::max(0.0, 1e-6 * cell.operator_us - measured.gpu_update_s);
  }
  if (cell.update == UpdateMode::kEarly) {
    model.runtime.update = UpdateMode::kEarly;
    model.runtime.spare_slots = cell.spare_slots;
    // What was measured is of updates in place and of early ones.
    const double early = static_cast<double>(measured.stats.early_chunks) / (n_chunks - n_gpu);
    model.rates.cpu_update_numel *= 1 - early + early / kEarlyUpdateShare;
  }
  model.runtime.host_ahead = false;
  model.runtime.grad_blocks = std::min(kGradBlocks, n_chunks - n_gpu);
  if (cell.update == UpdateMode::kImmediate) model.runtime.update = UpdateMode::kImmediate;
  if (cell.update == UpdateMode::kSync) {
    model.runtime.update = UpdateMode::kSync;
    model.runtime.fetch_ahead = 0;
  }
  return model;
}

std::vector<Cell> grid() {
  // GB/s; a chunk is 0.26 MB, an operator takes 2.5 ms.
  const std::pair<const char*, HostLink> links[] = {{"fast", {2, 2, 0, 20}},
                                                    {"slow up", {0.05, 2, 0, 20}},
                                                    {"slow down", {2, 0.04, 0, 20}},
                                                    {"joint", {0.1, 0.1, 0.08, 20}}};
  std::vector<Cell> cells;
  for (const auto& [name, link] : links) {
    for (const double gpu_share : {0.0, 0.5}) {
      const auto gathered = static_cast<uint32_t>(kLayers * (1 - gpu_share));
      for (const uint32_t blocks : {1u, gathered / 4, gathered / 2, gathered}) {
        if (!cells.empty() && cells.back().blocks == blocks && blocks == 1) continue;
        cells.push_back({name, link, blocks, gpu_share});
      }
    }
  }
  for (const UpdateMode update : {UpdateMode::kImmediate, UpdateMode::kSync}) {
    cells.push_back({"joint", links[3].second, 3, 0, update});
    cells.push_back({"slow up", links[1].second, 6, 0.5, update});
  }
  for (const auto& [name, link] : links) {
    cells.push_back({name, link, 3, 0, UpdateMode::kDeferred, /*chunk_layers=*/2});
    for (const uint32_t spare_slots : {3u, kLayers}) {
      for (const uint32_t blocks : {3u, kLayers}) {
        cells.push_back({.name = name,
                         .link = link,
                         .blocks = blocks,
                         .update = UpdateMode::kEarly,
                         .spare_slots = spare_slots});
      }
    }
    for (const uint32_t long_blocks : {1u, 2u}) {
      for (const uint32_t blocks : {2u, 6u}) {
        cells.push_back({.name = name,
                         .link = link,
                         .blocks = blocks,
                         .layer_chunks = 4,
                         .long_blocks = long_blocks});
      }
    }
    for (const uint32_t stride : {2u, 3u, 4u}) {
      cells.push_back({.name = name, .link = link, .blocks = 6, .swing_stride = stride});
    }
  }
  return cells;
}

double deviation(double simulated_s, double measured_s) {
  return std::abs(simulated_s / measured_s - 1);
}

// What came of a cell, in the first attempt of a few that was close and bound by what it should be
// bound by, or else in the closest: others may use the processors.
struct Comparison {
  double deviation = std::numeric_limits<double>::infinity();
  double simulated_s = 0, measured_s = 0;
  Leg busiest = Leg::kCompute;
  double on_demand_s = 0;  // simulated without bringing chunks ahead
};

Comparison compare(const Cell& cell, std::optional<Leg> binds = std::nullopt) {
  Comparison best;
  bool done = false;
  int attempts = 0;
  while (!done && attempts < kAttempts) {
    ++attempts;
    const Measured measured = train(cell);
    StepModel model = model_of(cell, measured);
    const Result<StepTimes> times = simulate_step(model);
    EXPECT_TRUE(times.ok()) << times.status().message();
    if (!times.ok()) return best;
    EXPECT_EQ(times->gathers, measured.stats.gathers);
    EXPECT_EQ(times->h2d_bytes, measured.stats.h2d_bytes);
    EXPECT_EQ(times->d2h_bytes, measured.stats.d2h_bytes);
    const double off = deviation(times->step_s, measured.step_s);
    done = off <= kClose && (!binds || times->busiest == *binds);
    if (off >= best.deviation && !done) continue;
    model.runtime.fetch_ahead = 0;
    best = {off, times->step_s, measured.step_s, times->busiest, simulate_step(model)->step_s};
  }
  fmt::print(
      "{:10} {:2} blocks of {} layers, {} long, placed on the GPU {:3.1f}, every {} swings, update "
      "{} ({} slots): simulated {:6.1f} ms, measured {:6.1f} ms ({:+5.1f} %), attempt {}\n",
      cell.name, cell.blocks, cell.chunk_layers, cell.long_blocks, cell.gpu_share,
      cell.swing_stride, name_in(kUpdateModeNames, cell.update), cell.spare_slots,
      1e3 * best.simulated_s, 1e3 * best.measured_s, 100 * (best.simulated_s / best.measured_s - 1),
      attempts);
  EXPECT_LE(best.deviation, kClose) << cell.name << ", " << cell.blocks << " blocks";
  if (binds) {
    EXPECT_EQ(best.busiest, *binds) << cell.name;
  }
  return best;
}

class SimulateHostDevice : public ::testing::Test {
 protected:
  SimulateHostDevice() { at::set_num_threads(1); }

  static std::unique_ptr<elixir::testing::DaemonProcess> start_elixird() {
    auto daemon = std::make_unique<elixir::testing::DaemonProcess>(
        std::vector<std::string>{"--no-bandwidth-probe"});
    ::setenv("ELIXIR_RUNTIME_DIR", daemon->folder().path.c_str(), 1);
    return daemon;
  }
};

TEST_F(SimulateHostDevice, EqualsMeasuredSteps) {
  const auto daemon = start_elixird();
  int without_prefetch = 0;
  for (const Cell& cell : grid()) {
    const Comparison found = compare(cell);
    without_prefetch += deviation(found.on_demand_s, found.measured_s) > kClose;
  }
  // That a simulator which brings nothing ahead would be found out.
  EXPECT_GT(without_prefetch, 5);
}

TEST_F(SimulateHostDevice, EqualsStepsThatUpdatesBind) {
  ::setenv("ELIXIR_ISA", "scalar", 1);  // read by elixird when it starts
  const auto daemon = start_elixird();
  ::unsetenv("ELIXIR_ISA");
  for (const UpdateMode update : {UpdateMode::kDeferred, UpdateMode::kImmediate}) {
    Cell cell{"slow update", {4, 4, 0, 20}, 6, 0, update};
    cell.operator_us = 300;  // all of them take less than half of what the updates do
    cell.width = 512;
    cell.chunk_layers = 2;
    compare(cell, Leg::kUpdate);
  }
  for (const double operator_us : {300., 1500., 3000.}) {
    for (const uint32_t spare_slots : {2u, kLayers / 2}) {
      Cell cell{"slow update", {4, 4, 0, 20}, 6, 0, UpdateMode::kEarly, 2, operator_us, 512};
      cell.spare_slots = spare_slots;
      compare(cell);
    }
  }
}

}  // namespace
}  // namespace elixir::planner
