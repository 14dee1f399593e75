// Work that touches the same bytes without an order is found, work with one is not.

#include "tests/fake_cuda/fake_cuda_fixture.h"

namespace fake_cuda::races {
namespace {

constexpr size_t kBytes = 4096;

class FakeRaces : public testing::Test {
 protected:
  // How many were found since the last call.
  uint64_t new_races() {
    const uint64_t all = fake_cuda_races();
    const uint64_t since = all - seen_;
    seen_ = all;
    return since;
  }
  cudaError_t upload(cudaStream_t stream, size_t from = 0, size_t bytes = kBytes) {
    return cudaMemcpyAsync(device_ + from, pinned_ + from, bytes, cudaMemcpyHostToDevice, stream);
  }
  cudaError_t download(cudaStream_t stream, size_t from = 0, size_t bytes = kBytes) {
    return cudaMemcpyAsync(other_ + from, device_ + from, bytes, cudaMemcpyDeviceToHost, stream);
  }
  cudaError_t read(cudaStream_t stream) {
    const FakeCudaAccess access = {device_, kBytes, 0};
    const FakeCudaWork work = {"a reader", 0, &access, 1, nullptr, nullptr};
    return fake_cuda_enqueue(stream, &work);
  }
  void let_wait(cudaStream_t later, cudaStream_t earlier) {
    ASSERT_CUDA(cudaEventRecord(event_, earlier));
    ASSERT_CUDA(cudaStreamWaitEvent(later, event_, 0));
  }

  const cudaStream_t first_ = make_stream(), second_ = make_stream(), third_ = make_stream();
  const cudaEvent_t event_ = make_event();
  std::byte* const device_ = make_device_memory(kBytes);
  std::byte* const pinned_ = make_pinned_memory(kBytes);
  std::byte* const other_ = make_pinned_memory(kBytes);
  uint64_t seen_ = fake_cuda_races();
};

TEST_F(FakeRaces, AReadAfterAWriteNeedsAnEvent) {
  ASSERT_CUDA(upload(first_));
  let_wait(second_, first_);
  ASSERT_CUDA(download(second_));
  EXPECT_EQ(new_races(), 0u);
}

// The wait of the test above is left out.
TEST_F(FakeRaces, WithoutItTheRaceIsFoundWithBothNames) {
  testing::internal::CaptureStderr();
  ASSERT_CUDA(upload(first_));
  ASSERT_CUDA(download(second_));
  EXPECT_EQ(new_races(), 1u);
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_NE(told.find("a copy from the device on stream"), std::string::npos) << told;
  EXPECT_NE(told.find("a copy to the device on stream"), std::string::npos) << told;
  // Of both stacks.
  const size_t stack = told.find("FakeRaces_WithoutItTheRaceIsFoundWithBothNames_Test::TestBody");
  EXPECT_NE(stack, std::string::npos) << told;
  EXPECT_NE(told.rfind("_WithoutItTheRaceIsFoundWithBothNames_Test::TestBody"), stack) << told;
}

TEST_F(FakeRaces, AWriteAfterAReadNeedsAnEventToo) {
  ASSERT_CUDA(read(first_));
  ASSERT_CUDA(upload(second_));
  EXPECT_EQ(new_races(), 1u);
}

TEST_F(FakeRaces, TwoReadersNeedNone) {
  ASSERT_CUDA(read(first_));
  ASSERT_CUDA(download(second_));
  EXPECT_EQ(new_races(), 0u);
}

TEST_F(FakeRaces, OneStreamIsInOrder) {
  ASSERT_CUDA(upload(first_));
  ASSERT_CUDA(read(first_));
  ASSERT_CUDA(upload(first_));
  EXPECT_EQ(new_races(), 0u);
}

TEST_F(FakeRaces, OrderGoesThroughAThirdStream) {
  ASSERT_CUDA(upload(first_));
  let_wait(second_, first_);
  let_wait(third_, second_);
  ASSERT_CUDA(read(third_));
  EXPECT_EQ(new_races(), 0u);
}

TEST_F(FakeRaces, AnEventThatWasRecordedTooEarlyDoesNotHelp) {
  ASSERT_CUDA(cudaEventRecord(event_, first_));
  ASSERT_CUDA(upload(first_));
  ASSERT_CUDA(cudaStreamWaitEvent(second_, event_, 0));
  ASSERT_CUDA(read(second_));
  EXPECT_EQ(new_races(), 1u);
}

TEST_F(FakeRaces, AHostThatWaitedOrdersWhatItEnqueuesNext) {
  ASSERT_CUDA(upload(first_));
  ASSERT_CUDA(cudaStreamSynchronize(first_));
  ASSERT_CUDA(read(second_));
  EXPECT_EQ(new_races(), 0u);
}

TEST_F(FakeRaces, ABlockingStreamAndTheDefaultOneAreInOrder) {
  cudaStream_t blocking = nullptr;
  ASSERT_CUDA(cudaStreamCreate(&blocking));
  ASSERT_CUDA(upload(nullptr));
  ASSERT_CUDA(read(blocking));
  ASSERT_CUDA(upload(nullptr));
  EXPECT_EQ(new_races(), 0u);
  ASSERT_CUDA(read(first_));  // no blocking one
  EXPECT_EQ(new_races(), 1u);
}

TEST_F(FakeRaces, OnlyBytesThatBothTouchCount) {
  ASSERT_CUDA(upload(first_, 0, kBytes / 2));
  ASSERT_CUDA(upload(second_, kBytes / 2, kBytes / 2));
  EXPECT_EQ(new_races(), 0u);
  ASSERT_CUDA(download(third_, kBytes / 2 - 8, 16));  // of either a half
  EXPECT_EQ(new_races(), 2u);
}

TEST_F(FakeRaces, HostMemoryCountsAsWell) {
  ASSERT_CUDA(download(first_));
  ASSERT_CUDA(download(second_));  // both write to other_
  EXPECT_EQ(new_races(), 1u);
}

TEST_F(FakeRaces, MemoryThatWasFreedIsForgotten) {
  void* memory = nullptr;
  ASSERT_CUDA(cudaMalloc(&memory, kBytes));
  ASSERT_CUDA(cudaMemsetAsync(memory, 0, kBytes, first_));
  ASSERT_CUDA(cudaFree(memory));
  void* again = nullptr;
  ASSERT_CUDA(cudaMalloc(&again, kBytes));
  ASSERT_EQ(again, memory);
  ASSERT_CUDA(cudaMemsetAsync(again, 0, kBytes, second_));
  EXPECT_EQ(new_races(), 0u);
}

}  // namespace
}  // namespace fake_cuda::races
