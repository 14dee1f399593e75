// Activations that go to host memory and come back over an emulated link, against the simulation of
// the same step, and chunks that go over the link before them.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "client/device/paced_device.h"
#include "client/train/activation_store.h"
#include "planner/simulate/simulate.h"
#include "tests/support/matchers.h"
#include "tests/support/median.h"

namespace elixir::test {
namespace {

constexpr uint32_t kLayers = 12, kEvery = 2;  // every second layer sends
constexpr double kOperatorUs = 10'000;
constexpr size_t kParcelBytes = size_t{4} << 20, kChunkBytes = size_t{1} << 20;
constexpr double kClose = 0.10;

// Parcels take as long on the link as the operators between two of them.
constexpr double kEqualGbS =
    1e-9 * static_cast<double>(kParcelBytes) / (kEvery * kOperatorUs * 1e-6);

bool sends(uint32_t layer) { return layer % kEvery == 0; }
constexpr uint32_t kLastSender = kLayers - kEvery;

planner::StepModel step_model(double gb_s, bool gathers) {
  planner::StepModel model;
  model.chunk_numel = kChunkBytes / 2;
  model.runtime.host_ahead = false;
  const auto place = gathers ? planner::Placement::kCpu : planner::Placement::kGpu;
  model.chunks.assign(kLayers, {place, model.chunk_numel, false});
  model.rcache_blocks = kLayers;
  model.rates.h2d_bytes = model.rates.d2h_bytes = 1e9 * gb_s;
  for (uint32_t i = 0; i < kLayers; ++i) model.operators.push_back({kOperatorUs * 1e-6, {i}, {}});
  model.backward_begin = kLayers;
  for (uint32_t i = kLayers; i-- > 0;) model.operators.push_back({kOperatorUs * 1e-6, {i}, {}});
  for (uint32_t i = 0; i < kLayers; i += kEvery) {
    model.parcels.push_back({i, 2 * kLayers - 1 - i, static_cast<double>(kParcelBytes)});
  }
  model.parcels_of_pass = static_cast<uint32_t>(model.parcels.size());
  return model;
}

class PacedSteps {
 public:
  PacedSteps(double gb_s, bool gathers)
      : device_({.link = HostLink{gb_s, gb_s}, .operator_us = kOperatorUs}),
        store_(std::make_shared<ActivationStore>(device_, uint64_t{1} << 30)),
        gathers_(gathers) {
    for (uint32_t i = 0; i < kLayers && gathers; ++i) {
      blocks_.push_back(device_.allocate(kChunkBytes, "a block", ""));
      filled_.push_back(device_.create_event());
    }
    host_ = device_.allocate_host(kChunkBytes, "a chunk");
  }
  ~PacedSteps() { store_->close(); }
  PacedSteps(const PacedSteps&) = delete;
  PacedSteps& operator=(const PacedSteps&) = delete;

  // Seconds of one step. Values are as they were.
  double step() {
    const int64_t begin_ns = monotonic_ns();
    std::vector<std::shared_ptr<SentTensors>> sent(kLayers);
    for (uint32_t i = 0; i < blocks_.size(); ++i) {
      device_.upload(Stream::kUpload, blocks_[i], host_, kChunkBytes);
      device_.record(filled_[i], Stream::kUpload);
    }
    for (uint32_t i = 0; i < kLayers; ++i) {
      if (gathers_) device_.wait(Stream::kCompute, filled_[i]);
      device_.end_operator();
      if (i == kLastSender) store_->settle();
      if (!sends(i) || i == kLastSender) continue;
      sent[i] = store_->put({at::full({kParcelBytes / 4}, static_cast<float>(i))});
    }
    for (uint32_t i = kLayers; i-- > 0;) {
      if (i == kLastSender) store_->bring_next();
      if (sent[i] != nullptr) {
        const at::Tensor back = sent[i]->get()[0];
        EXPECT_EQ(back[0].item<float>(), static_cast<float>(i));
        EXPECT_EQ(back[-1].item<float>(), static_cast<float>(i));
      }
      device_.end_operator();
    }
    return static_cast<double>(monotonic_ns() - begin_ns) * 1e-9;
  }

 private:
  PacedDevice device_;
  const std::shared_ptr<ActivationStore> store_;
  const bool gathers_;
  std::vector<std::byte*> blocks_;
  std::vector<DeviceEvent> filled_;
  std::byte* host_ = nullptr;
};

TEST(ActivationTime, IsThatOfTheSimulation) {
  for (const bool gathers : {false, true}) {
    for (const double speed : {4.0, 1.0, 0.25}) {
      const double gb_s = speed * kEqualGbS;
      PacedSteps steps(gb_s, gathers);
      std::vector<double> steps_s;
      for (int i = 0; i < 7; ++i) steps_s.push_back(steps.step());
      steps_s.erase(steps_s.begin(), steps_s.begin() + 2);
      const double measured_s = median(steps_s);
      const double simulated_s = must(planner::simulate_step(step_model(gb_s, gathers))).step_s;
      std::printf("link %.2f of compute%s: %.1f ms, simulated %.1f ms\n", speed,
                  gathers ? ", chunks beside" : "", 1e3 * measured_s, 1e3 * simulated_s);
      EXPECT_NEAR(measured_s / simulated_s, 1, kClose) << speed << " " << gathers;
    }
  }
}

// Chunks enqueued later go first: a gather waits for the piece in hand and not for a whole parcel.
TEST(ActivationTime, ChunksGoBeforeActivations) {
  constexpr double kPieceS = 0.25;
  PacedDevice device({.link = HostLink{1e-9 * (64 << 10) / kPieceS, 1e-9 * (64 << 10) / kPieceS}});
  std::byte* const memory = device.allocate(size_t{1} << 20, "a block", "");
  std::byte* const host = device.allocate_host(size_t{1} << 20, "a chunk");
  const DeviceEvent first = device.create_event(), last = device.create_event(),
                    chunk = device.create_event();
  device.upload(Stream::kKeepUp, memory, host, 64 << 10);
  device.record(first, Stream::kKeepUp);
  device.upload(Stream::kKeepUp, memory, host, 64 << 10);
  device.record(last, Stream::kKeepUp);
  device.upload(Stream::kUpload, memory, host, 64);
  device.record(chunk, Stream::kUpload);
  device.synchronize(chunk);
  EXPECT_FALSE(device.done(last));
  device.synchronize(last);
  EXPECT_TRUE(device.done(first));
}

}  // namespace
}  // namespace elixir::test
