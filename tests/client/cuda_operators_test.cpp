// Operators on a CUDA device: when they ran by its clock, on which streams, and where they are
// refused. Over a fake CUDA whose clock stands still but for copies: each takes as many
// milliseconds as it has bytes. An operator is a copy on kCompute.

#include <cstring>

#include "tests/client/cuda_device_fixture.h"
#include "tests/support/matchers.h"

namespace elixir {
namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr int kOtherStream = 100;

class CudaOperatorsTest : public CudaDeviceTest {
 protected:
  void run_operator(size_t bytes) { device_->copy(Stream::kCompute, block_, block_ + 64, bytes); }
  // Operators wait for an upload.
  void wait_for_upload(size_t bytes) {
    device_->upload(Stream::kUpload, block_, host_, bytes);
    device_->record(event_, Stream::kUpload);
    device_->wait(Stream::kCompute, event_);
  }
  void finish(Stream stream) {
    device_->record(event_, stream);
    device_->synchronize(event_);
  }

  std::byte* const block_ = device_memory(128);
  std::byte host_[64] = {};
  const DeviceEvent event_ = device_->create_event();
};

TEST_F(CudaOperatorsTest, WhatTheyWaitedForAnUploadIsNotTheirTime) {
  device_->time_copies();
  device_->operators_run();
  run_operator(20);
  EXPECT_TRUE(device_->operators_wait());
  wait_for_upload(30);
  device_->operators_run();
  run_operator(5);
  device_->operators_end(7);
  EXPECT_EQ(device_->take_operator_times(), std::nullopt);  // the device has done nothing yet
  finish(Stream::kDownload);                                // which is behind the step's operators
  const std::optional<OperatorTimes> times = device_->take_operator_times();
  ASSERT_NE(times, std::nullopt);
  EXPECT_EQ(times->step, 7u);
  EXPECT_EQ(times->busy_ns, 25 * kMs);
  EXPECT_EQ(times->step_ns, 55 * kMs);
  EXPECT_EQ(device_->take_operator_times(), std::nullopt);
}

TEST_F(CudaOperatorsTest, AStepLastsFromTheLastOperatorOfTheOneBefore) {
  device_->time_copies();
  for (uint32_t step = 1; step <= 3; ++step) {
    wait_for_upload(10);
    device_->operators_run();
    run_operator(20);
    device_->operators_end(step);
  }
  finish(Stream::kDownload);
  for (uint32_t step = 1; step <= 3; ++step) {
    const std::optional<OperatorTimes> times = device_->take_operator_times();
    ASSERT_NE(times, std::nullopt);
    EXPECT_EQ(times->step, step);
    EXPECT_EQ(times->busy_ns, 20 * kMs);
    EXPECT_EQ(times->step_ns, (step == 1 ? 20 : 30) * kMs);
  }
}

TEST_F(CudaOperatorsTest, ASecondWordOfAKindChangesNothing) {
  device_->time_copies();
  EXPECT_FALSE(device_->operators_wait());
  device_->operators_run();
  device_->operators_run();
  run_operator(8);
  EXPECT_TRUE(device_->operators_wait());
  EXPECT_FALSE(device_->operators_wait());
  run_operator(16);
  device_->operators_end(1);
  device_->operators_end(2);  // a step without operators
  finish(Stream::kDownload);
  EXPECT_EQ(device_->take_operator_times()->busy_ns, 8 * kMs);
  EXPECT_EQ(device_->take_operator_times()->busy_ns, 0u);
}

TEST_F(CudaOperatorsTest, ATraceShowsThemOnTheDevicesClock) {
  device_->keep_spans();
  device_->operators_run();
  run_operator(20);
  device_->operators_wait();
  wait_for_upload(30);
  device_->operators_run();
  run_operator(5);
  device_->operators_end(1);
  finish(Stream::kDownload);
  std::vector<StreamSpan> operators, uploads;
  for (const StreamSpan& span : device_->take_spans()) {
    (span.stream == Stream::kCompute ? operators : uploads).push_back(span);
  }
  ASSERT_EQ(operators.size(), 2u);
  ASSERT_EQ(uploads.size(), 1u);
  EXPECT_EQ(operators[0].end_ns, uploads[0].begin_ns);
  EXPECT_EQ(operators[1].begin_ns, uploads[0].end_ns);
}

TEST_F(CudaOperatorsTest, ADeviceFarBehindCostsABoundedNumberOfEvents) {
  device_->time_copies();
  const auto most = static_cast<int>(CudaSpans::kMostEvents);
  const auto step = [&](uint32_t number, int waits) {
    for (int i = 0; i < waits; ++i) {
      device_->operators_run();
      run_operator(1);
      device_->operators_wait();
    }
    device_->operators_end(number);
  };
  step(1, most);
  EXPECT_LE(record_->live_events, most + 10);
  finish(Stream::kDownload);
  step(2, 3);
  finish(Stream::kDownload);
  std::optional<OperatorTimes> times, last;
  while ((times = device_->take_operator_times())) last = times;
  ASSERT_NE(last, std::nullopt);
  EXPECT_EQ(last->step, 2u);
  const int live = record_->live_events;
  for (uint32_t number = 3; number < 10; ++number) {
    step(number, 100);
    finish(Stream::kDownload);
    EXPECT_EQ(device_->take_operator_times()->busy_ns, 100 * kMs);
  }
  EXPECT_EQ(record_->live_events, live);
}

TEST_F(CudaOperatorsTest, AChangedCurrentStreamGoesOnBehindTheOneBefore) {
  std::memset(host_, 0x5a, sizeof host_);
  device_->upload(Stream::kCompute, block_ + 64, host_, 32);
  cuda_->set_current_stream(kOtherStream);
  device_->begin_operator("aten::add");
  run_operator(32);  // reads what the other stream brings
  std::byte back[32] = {};
  device_->download(Stream::kCompute, back, block_, sizeof back);
  finish(Stream::kCompute);
  EXPECT_EQ(std::memcmp(back, host_, sizeof back), 0);
  const int waits = record_->count("wait");
  run_operator(32);
  EXPECT_EQ(record_->count("wait"), waits);  // once a change
}

TEST_F(CudaOperatorsTest, ACaptureIsRefusedAndSaysWhatToDo) {
  device_->begin_operator("aten::addmm");
  cuda_->capturing = true;
  expect_thrown(
      Code::kInvalidArgument,
      {"aten::addmm reads a parameter while a CUDA graph is being captured", "without capturing"},
      [&] { device_->begin_operator("aten::addmm"); });
}

}  // namespace
}  // namespace elixir
