// CudaDevice over a fake CUDA: which stream everything goes to, and that events alone order the
// work.

#include "client/cuda/cuda_device.h"

#include <algorithm>
#include <functional>

#include "tests/client/cuda_device_fixture.h"
#include "tests/support/matchers.h"

namespace elixir {
namespace {

constexpr Stream kAllStreams[] = {Stream::kCompute, Stream::kUpload, Stream::kDownload,
                                  Stream::kGather, Stream::kReduce};

// ---- streams ----

TEST_F(CudaDeviceTest, EverythingGoesToTheStreamAskedFor) {
  std::byte* block = device_memory(64 + sizeof(NormSum));
  std::byte host[64] = {};
  const DeviceEvent event = device_->create_event();
  float master = 1, exp_avg = 0, exp_avg_sq = 0, grad = 1;
  const void* grads[] = {&grad};
  const optim::UpdateSpan span{
      .grads = grads, .param = &master, .moments = {&exp_avg, &exp_avg_sq}, .numel = 1};
  const optim::AdamStep step = optim::make_adam_step({}, 1, 1);
  const int waited = waits();
  std::set<int> seen;
  for (const Stream stream : kAllStreams) {
    device_->upload(stream, block, host, sizeof host);
    const int number = record_->stream_of_last("copy_h2d");
    EXPECT_TRUE(seen.insert(number).second) << "two streams are one";
    device_->download(stream, host, block, sizeof host);
    device_->copy(stream, block, block + 32, 32);
    device_->zero(stream, block, 64);
    device_->update(stream, span, step);
    device_->squared_norm(stream, ComputeType::kFp32, block, 4, block + 64);
    device_->record(event, stream);
    device_->wait(stream, event);
    for (const char* call :
         {"copy_d2h", "copy_d2d", "zero", "update", "squared_norm", "record", "wait"}) {
      EXPECT_EQ(record_->stream_of_last(call), number) << call;
    }
    const std::optional<TorchStream> entered = device_->begin_collective(stream);
    ASSERT_EQ(entered.has_value(), stream != Stream::kCompute);
    if (entered) {
      EXPECT_EQ(entered->id, number);
    }
  }
  expect_no_wait_since(waited);
  device_.reset();  // what was enqueued reads and writes this function's variables
}

TEST_F(CudaDeviceTest, ComputeIsTorchsCurrentStreamAtEachCall) {
  std::byte* block = device_memory(64);
  device_->zero(Stream::kCompute, block, 64);
  EXPECT_EQ(record_->stream_of_last("zero"), 0);
  cuda_->set_current_stream(100);
  device_->zero(Stream::kCompute, block, 64);
  EXPECT_EQ(record_->stream_of_last("zero"), 100);
  device_->zero(Stream::kUpload, block, 64);
  EXPECT_NE(record_->stream_of_last("zero"), 100);
}

TEST_F(CudaDeviceTest, TheSpansArrayOfGradientsIsReadBeforeUpdateReturns) {
  std::vector<float> state(4, 0.0f);
  const float grad = 1;
  std::vector<const void*> grads = {&grad};
  optim::UpdateSpan span{
      .grads = grads.data(), .param = &state[0], .moments = {&state[1], &state[2]}, .numel = 1};
  device_->update(Stream::kCompute, span, optim::make_adam_step({}, 1, 1));
  grads.assign(1, nullptr);
  const DeviceEvent event = device_->create_event();
  device_->record(event, Stream::kCompute);
  device_->synchronize(event);
  EXPECT_LT(state[0], 0);  // one step against the gradient
}

TEST_F(CudaDeviceTest, TheSquaredNormIsTakenOnItsStream) {
  std::byte* block = device_memory(64 + 2 * sizeof(NormSum));
  const std::vector<float> threes(8, 3.0f);
  device_->upload(Stream::kReduce, block, reinterpret_cast<const std::byte*>(threes.data()), 32);
  // Of two chunks, side by side.
  device_->squared_norm(Stream::kReduce, ComputeType::kFp32, block, 8, block + 64);
  device_->squared_norm(Stream::kReduce, ComputeType::kFp32, block, 4,
                        block + 64 + sizeof(NormSum));
  NormSum sums[2];
  device_->download(Stream::kReduce, reinterpret_cast<std::byte*>(sums), block + 64, sizeof sums);
  const DeviceEvent down = device_->create_event();
  device_->record(down, Stream::kReduce);
  device_->synchronize(down);
  EXPECT_EQ(to_double(sums[0]), 72);
  EXPECT_EQ(to_double(sums[1]), 36);

  cuda_->fail("squared_norm", CudaResult::kNoKernelImage);
  EXPECT_THAT(thrown([&] {
                device_->squared_norm(Stream::kReduce, ComputeType::kFp32, block, 8, block + 64);
              }).message(),
              HasSubstr("the fake refused the norm"));
}

// ---- order ----

TEST_F(CudaDeviceTest, EventsAloneOrderTheWork) {
  std::vector<std::byte> host(256), back(256);
  for (size_t i = 0; i < host.size(); ++i) host[i] = static_cast<std::byte>(i);
  std::byte* first = device_memory(256);
  std::byte* second = device_memory(256);
  const DeviceEvent up = device_->create_event();
  const DeviceEvent computed = device_->create_event();
  const DeviceEvent down = device_->create_event();
  const int waited = waits();

  device_->upload(Stream::kUpload, first, host.data(), 256);
  device_->record(up, Stream::kUpload);
  device_->wait(Stream::kCompute, up);
  device_->copy(Stream::kCompute, second, first, 256);
  device_->record(computed, Stream::kCompute);
  device_->wait(Stream::kDownload, computed);
  device_->download(Stream::kDownload, back.data(), second, 256);
  device_->record(down, Stream::kDownload);
  EXPECT_FALSE(device_->done(down));
  expect_no_wait_since(waited);
  EXPECT_NE(back, host);
  device_->synchronize(down);
  EXPECT_EQ(back, host);
  EXPECT_TRUE(device_->done(down));
}

TEST_F(CudaDeviceTest, AMissingWaitGivesWrongBytes) {  // the fake can tell
  std::vector<std::byte> host(64, std::byte{7}), back(64);
  std::byte* block = device_memory(64);
  const DeviceEvent down = device_->create_event();
  device_->upload(Stream::kUpload, block, host.data(), 64);
  device_->download(Stream::kDownload, back.data(), block, 64);
  device_->record(down, Stream::kDownload);
  device_->synchronize(down);
  EXPECT_NE(back, host);
  device_.reset();  // what was enqueued reads this function's variables
}

TEST_F(CudaDeviceTest, AWaitMeansTheLatestRecordBeforeIt) {
  std::vector<std::byte> ones(64, std::byte{1}), twos(64, std::byte{2}), back(64);
  std::byte* block = device_memory(64);
  const DeviceEvent up = device_->create_event();
  const DeviceEvent down = device_->create_event();
  device_->upload(Stream::kUpload, block, ones.data(), 64);
  device_->record(up, Stream::kUpload);
  device_->wait(Stream::kDownload, up);
  device_->download(Stream::kDownload, back.data(), block, 64);
  device_->record(down, Stream::kDownload);
  // Recorded again behind more work: the wait above means the first record all the same.
  device_->upload(Stream::kUpload, block, twos.data(), 64);
  device_->record(up, Stream::kUpload);
  device_->synchronize(down);
  EXPECT_EQ(back, ones);
  EXPECT_FALSE(device_->done(up));  // the second record

  device_->wait(Stream::kDownload, up);
  device_->download(Stream::kDownload, back.data(), block, 64);
  device_->record(down, Stream::kDownload);
  device_->synchronize(down);
  EXPECT_EQ(back, twos);
}

TEST_F(CudaDeviceTest, AnEventNeverRecordedIsDone) {
  const DeviceEvent event = device_->create_event();
  EXPECT_TRUE(device_->done(event));
  device_->wait(Stream::kCompute, event);
  device_->synchronize(event);
}

TEST_F(CudaDeviceTest, AskingTooEarlyLeavesNoError) {
  std::byte* block = device_memory(64);
  const DeviceEvent event = device_->create_event();
  device_->zero(Stream::kUpload, block, 64);
  device_->record(event, Stream::kUpload);
  EXPECT_FALSE(device_->done(event));
  EXPECT_EQ(record_->pending_error, CudaResult::kSuccess);
}

TEST_F(CudaDeviceTest, ManyEvents) {
  std::vector<DeviceEvent> events;
  for (int i = 0; i < 5000; ++i) events.push_back(device_->create_event());
  std::byte* block = device_memory(64);
  for (const DeviceEvent event : events) {
    device_->zero(Stream::kUpload, block, 64);
    device_->record(event, Stream::kUpload);
  }
  device_->synchronize(events[2500]);
  EXPECT_TRUE(device_->done(events[2500]));
  EXPECT_FALSE(device_->done(events[2501]));
  EXPECT_EQ(record_->live_events, 5000);
}

// ---- errors on the way ----

TEST_F(CudaDeviceTest, EveryRefusedCallSaysWhatWasDone) {
  std::byte* block = device_memory(64);
  std::byte host[64] = {};
  const DeviceEvent event = device_->create_event();
  const std::pair<const char*, std::function<void()>> calls[] = {
      {"copy_h2d", [&] { device_->upload(Stream::kUpload, block, host, 64); }},
      {"copy_d2h", [&] { device_->download(Stream::kDownload, host, block, 64); }},
      {"copy_d2d", [&] { device_->copy(Stream::kCompute, block, block + 32, 32); }},
      {"zero", [&] { device_->zero(Stream::kCompute, block, 64); }},
      {"create_event", [&] { device_->create_event(); }},
      {"record", [&] { device_->record(event, Stream::kCompute); }},
      {"wait", [&] { device_->wait(Stream::kCompute, event); }},
      {"query", [&] { device_->done(event); }},
      {"synchronize", [&] { device_->synchronize(event); }}};
  for (const auto& [function, call] : calls) {
    SCOPED_TRACE(function);
    cuda_->fail(function, CudaResult::kIllegalAddress);
    expect_thrown(Code::kInternal,
                  {"CUDA failed to ", "the fake's text (cudaErrorFake)",
                   "end this program and start it again"},
                  call);
    EXPECT_EQ(record_->pending_error, CudaResult::kSuccess);
  }
  EXPECT_EQ(device_->h2d_bytes(), 0u);  // what was refused does not count
  EXPECT_EQ(device_->d2h_bytes(), 0u);
}

TEST_F(CudaDeviceTest, ARefusedKernelIsThrown) {
  cuda_->fail("update", CudaResult::kNoKernelImage);
  const float grad = 1;
  const void* grads[] = {&grad};
  const optim::UpdateSpan span{.grads = grads};
  EXPECT_THAT(thrown([&] {
                device_->update(Stream::kCompute, span, optim::make_adam_step({}, 1, 1));
              }).message(),
              HasSubstr("the fake refused the kernel"));
}

TEST_F(CudaDeviceTest, CountsBytesOverTheLink) {
  std::byte* block = device_memory(64);
  std::byte host[64] = {};
  device_->upload(Stream::kUpload, block, host, 64);
  device_->upload(Stream::kUpload, block, host, 32);
  device_->download(Stream::kDownload, host, block, 16);
  device_->copy(Stream::kCompute, block, block + 32, 32);
  EXPECT_EQ(device_->h2d_bytes(), 96u);
  EXPECT_EQ(device_->d2h_bytes(), 16u);
}

TEST_F(CudaDeviceTest, EndsWhenTheDeviceIsDoneAndGivesEverythingBack) {
  std::vector<std::byte> host(64, std::byte{7}), back(64);
  std::byte* block = device_memory(64);
  device_->create_event();
  ASSERT_TRUE(device_->pin(back.data(), 64).ok());
  device_->upload(Stream::kUpload, block, host.data(), 64);
  device_->download(Stream::kUpload, back.data(), block, 64);
  device_.reset();
  EXPECT_EQ(back, host);
  EXPECT_EQ(record_->live_events, 0);
  EXPECT_EQ(record_->live_memory, 0);
  EXPECT_TRUE(record_->registered.empty());
  std::vector<std::string> names;
  for (const auto& call : record_->calls) names.push_back(call.name);
  const auto waited = std::find(names.rbegin(), names.rend(), "synchronize_device");
  EXPECT_EQ(std::find(waited, names.rend(), "free"), names.rend()) << "freed before the wait";
}

TEST_F(CudaDeviceTest, EndsQuietlyWhenTheContextIsLost) {
  device_memory(64);
  cuda_->fail("synchronize_device", CudaResult::kLaunchFailure);
  device_.reset();
  EXPECT_EQ(record_->live_memory, 0);
  EXPECT_EQ(record_->pending_error, CudaResult::kSuccess);
}

}  // namespace
}  // namespace elixir
