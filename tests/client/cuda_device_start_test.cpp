// CudaDevice over a fake CUDA: starting, memory, page-locking; what is said when CUDA refuses.

#include "tests/client/cuda_device_fixture.h"
#include "tests/support/matchers.h"

namespace elixir {
namespace {

// ---- starting ----

TEST_F(CudaDeviceTest, IsTheDeviceAskedFor) {
  start(3);
  EXPECT_EQ(device_->cuda_index(), 3);
}

TEST_F(CudaDeviceTest, AFailureToStartCarriesTorchsText) {
  auto driver = std::make_unique<LazyCudaDriver>(record_);
  driver->fail("use_device", CudaResult::kNoDevice);
  const Status status = thrown([&] { CudaDevice(std::move(driver), 0, 0); });
  EXPECT_THAT(status.message(), HasSubstr("torch failed to start CUDA: the fake has no driver"));
}

TEST_F(CudaDeviceTest, ADeviceThatCannotBeAskedIsAnError) {
  auto driver = std::make_unique<LazyCudaDriver>(record_);
  driver->fail("memory_info", CudaResult::kDevicesUnavailable);
  const Status status = thrown([&] { CudaDevice(std::move(driver), 0, 0); });
  expect_refused(status, Code::kUnavailable,
                 {"ask for the device's memory", "the fake's text (cudaErrorFake)",
                  "another process holds the GPU"});
  EXPECT_EQ(record_->pending_error, CudaResult::kSuccess);
}

// ---- memory ----

TEST_F(CudaDeviceTest, MemoryIsZeroedBeforeAnyStreamSeesIt) {
  const std::byte* memory = device_memory(1000);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(memory[i], std::byte{0});
  EXPECT_EQ(device_->allocated_bytes(), 1024u);  // as torch rounds
}

TEST_F(CudaDeviceTest, HostMemoryIsPageLockedZeroedAndFreed) {
  const std::byte* const memory = device_->allocate_host(1000, "norms");
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(memory[i], std::byte{0});
  EXPECT_EQ(record_->count("host_allocate"), 1);
  EXPECT_EQ(device_->allocated_bytes(), 0u);  // of the device
  cuda_->fail("host_allocate", CudaResult::kMemoryAllocation);
  const Status status = thrown([&] { device_->allocate_host(1 << 20, "norms"); });
  expect_refused(status, Code::kResourceExhausted,
                 {"1.00 MiB", "for norms", "ulimit -l unlimited"});
  EXPECT_EQ(record_->pending_error, CudaResult::kSuccess);
  EXPECT_EQ(record_->live_host_memory, 1);
  device_.reset();
  EXPECT_EQ(record_->live_host_memory, 0);
}

TEST_F(CudaDeviceTest, TheLimitHoldsForTorchAndForElixir) {
  start(0, size_t{1} << 20);
  EXPECT_NEAR(record_->memory_fraction, 1.0 / 1024, 1e-9);
  device_memory(size_t{1} << 19);
  expect_thrown(
      Code::kResourceExhausted,
      {"the rCache needs 768.00 KiB beyond the 512.00 KiB that Elixir holds on the device, and the "
       "limit is 1.00 MiB: lower --rcache-blocks"},
      [&] { device_->allocate(size_t{3} << 18, "the rCache", "lower --rcache-blocks"); });
  EXPECT_EQ(record_->count("allocate"), 1);
  EXPECT_EQ(device_->allocated_bytes(), size_t{1} << 19);
  device_memory(size_t{1} << 19);  // exactly full
  device_.reset();
  EXPECT_EQ(record_->memory_fraction, 1);  // torch's again
}

TEST_F(CudaDeviceTest, ALimitBeyondTheDeviceIsNone) {
  start(0, size_t{1} << 31);
  EXPECT_EQ(record_->memory_fraction, 0);
}

TEST_F(CudaDeviceTest, MemoryThatTorchRefusesIsSaidWithNeedAndHave) {
  device_memory(4096);
  cuda_->fail("allocate", CudaResult::kMemoryAllocation);
  expect_thrown(Code::kResourceExhausted,
                {"the rCache needs 1.00 MiB on the device; of its 1.00 GiB, 256.00 "
                 "MiB are free; Elixir holds 4.00 KiB: lower --rcache-blocks",
                 "the fake is out of memory"},
                [&] { device_->allocate(1 << 20, "the rCache", "lower --rcache-blocks"); });
  EXPECT_EQ(record_->pending_error, CudaResult::kSuccess);
  EXPECT_EQ(device_->allocated_bytes(), 4096u);
  device_memory(4096);  // goes on
}

// ---- page-locking ----

TEST_F(CudaDeviceTest, ARefusedPinLeavesNoErrorAndIsNotReleased) {
  std::byte host[4096] = {};
  cuda_->fail("host_register", CudaResult::kMemoryAllocation);
  // What, why, effect and remedy.
  expect_refused(device_->pin(host, sizeof host), Code::kResourceExhausted,
                 {"cannot page-lock 4.00 KiB of host memory", "the fake's text (cudaErrorFake)",
                  "slower", "ulimit -l"});
  EXPECT_EQ(record_->pending_error, CudaResult::kSuccess);
  device_->unpin(host);
  EXPECT_EQ(record_->count("host_unregister"), 0);

  std::byte* block = device_memory(sizeof host);  // and copies of it work
  device_->upload(Stream::kUpload, block, host, sizeof host);
  EXPECT_TRUE(device_->pin(host, sizeof host).ok());  // the next try may succeed
  device_->unpin(host);
  EXPECT_EQ(record_->count("host_unregister"), 1);
  device_->unpin(host);
  EXPECT_EQ(record_->count("host_unregister"), 1);
  device_.reset();  // what was enqueued reads this function's variables
}

// ---- CudaResult ----

TEST(CudaResultTest, StatusesHaveCauseRemedyAndCode) {
  const Status memory = cuda_status(CudaResult::kMemoryAllocation, "out of memory",
                                    "cudaErrorMemoryAllocation", "make a stream");
  expect_refused(memory, Code::kResourceExhausted,
                 {"CUDA failed to make a stream: out of memory "
                  "(cudaErrorMemoryAllocation); nvidia-smi"});
  EXPECT_EQ(cuda_status(CudaResult::kInsufficientDriver, "", "", "").code(), Code::kUnavailable);
  EXPECT_EQ(cuda_status(CudaResult::kNoDevice, "", "", "").code(), Code::kUnavailable);
  EXPECT_EQ(cuda_status(static_cast<CudaResult>(1), "", "", "").code(), Code::kInternal);
}

TEST(CudaResultTest, KnowsWhichErrorsLoseTheContext) {
  for (const int lost : {214, 700, 702, 710, 715, 719}) {
    EXPECT_TRUE(cuda_context_is_lost(static_cast<CudaResult>(lost))) << lost;
  }
  for (const int kept : {0, 1, 2, 35, 100, 600, 701, 704, 712, 713, 720, 801}) {
    EXPECT_FALSE(cuda_context_is_lost(static_cast<CudaResult>(kept))) << kept;
  }
}

}  // namespace
}  // namespace elixir
