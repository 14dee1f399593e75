// Streams, events and the virtual clock.

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "tests/fake_cuda/fake_cuda_fixture.h"

namespace fake_cuda {
namespace {

constexpr int64_t kMs = 1'000'000;

void run_flag(void* flag) { static_cast<std::atomic<bool>*>(flag)->store(true); }

void wait_for_flag(void* flag) {
  while (!static_cast<std::atomic<bool>*>(flag)->load()) std::this_thread::yield();
}

cudaError_t enqueue_function(cudaStream_t stream, void (*run)(void*), void* argument) {
  const FakeCudaWork work = {"a function of a test", 0, nullptr, 0, run, argument};
  return fake_cuda_enqueue(stream, &work);
}

float elapsed_ms(cudaEvent_t begin, cudaEvent_t end) {
  float ms = -1;
  EXPECT_CUDA(cudaEventElapsedTime(&ms, begin, end));
  return ms;
}

TEST(FakeStreams, WorkRunsBehindTheCallersBackInOrder) {
  const cudaStream_t stream = make_stream();
  std::atomic<bool> go = false, done = false;
  ASSERT_CUDA(enqueue_function(stream, wait_for_flag, &go));
  ASSERT_CUDA(enqueue_function(stream, run_flag, &done));
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  EXPECT_FALSE(done);
  go = true;
  ASSERT_CUDA(cudaStreamSynchronize(stream));
  EXPECT_TRUE(done);
  EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess);
}

TEST(FakeStreams, AStreamThatWaitsForAnEventRunsAfterIt) {
  const cudaStream_t first = make_stream(), second = make_stream();
  const cudaEvent_t event = make_event();
  std::atomic<bool> go = false, done = false;
  ASSERT_CUDA(enqueue_function(first, wait_for_flag, &go));
  ASSERT_CUDA(cudaEventRecord(event, first));
  ASSERT_CUDA(cudaStreamWaitEvent(second, event, 0));
  ASSERT_CUDA(enqueue_function(second, run_flag, &done));
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  EXPECT_FALSE(done);
  go = true;
  ASSERT_CUDA(cudaStreamSynchronize(second));
  EXPECT_TRUE(done);
}

TEST(FakeStreams, TheLatestRecordBeforeAWaitCounts) {
  const cudaStream_t first = make_stream(), second = make_stream();
  const cudaEvent_t event = make_event();
  std::atomic<bool> go = false;
  ASSERT_CUDA(cudaEventRecord(event, first));
  ASSERT_CUDA(cudaStreamWaitEvent(second, event, 0));
  ASSERT_CUDA(enqueue_function(first, wait_for_flag, &go));
  ASSERT_CUDA(cudaEventRecord(event, first));
  EXPECT_CUDA(cudaStreamSynchronize(second));  // does not wait for the second record
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  go = true;
  EXPECT_CUDA(cudaEventSynchronize(event));
}

TEST(FakeStreams, AnEventThatWasNeverRecordedIsDone) {
  const cudaEvent_t event = make_event();
  EXPECT_CUDA(cudaEventQuery(event));
  EXPECT_CUDA(cudaEventSynchronize(event));
  EXPECT_CUDA(cudaStreamWaitEvent(make_stream(), event, 0));
}

TEST(FakeClock, WorkOfOneStreamAddsUpAndThatOfTwoOverlaps) {
  const cudaStream_t first = make_stream(), second = make_stream();
  const cudaEvent_t begin = make_event(), end_first = make_event(), end_second = make_event();
  ASSERT_CUDA(cudaEventRecord(begin, first));
  for (int i = 0; i < 3; ++i) ASSERT_CUDA(enqueue_ns(first, 2 * kMs));
  ASSERT_CUDA(enqueue_ns(second, 5 * kMs));
  ASSERT_CUDA(cudaEventRecord(end_first, first));
  ASSERT_CUDA(cudaEventRecord(end_second, second));
  ASSERT_CUDA(cudaDeviceSynchronize());
  EXPECT_NEAR(elapsed_ms(begin, end_first), 6, 0.1);
  EXPECT_NEAR(elapsed_ms(begin, end_second), 5, 0.1);
}

TEST(FakeClock, AStreamThatWaitsStartsWhenTheEventIsReached) {
  const cudaStream_t first = make_stream(), second = make_stream();
  const cudaEvent_t begin = make_event(), middle = make_event(), end = make_event();
  ASSERT_CUDA(cudaEventRecord(begin, first));
  ASSERT_CUDA(enqueue_ns(first, 4 * kMs));
  ASSERT_CUDA(cudaEventRecord(middle, first));
  ASSERT_CUDA(cudaStreamWaitEvent(second, middle, 0));
  ASSERT_CUDA(enqueue_ns(second, 3 * kMs));
  ASSERT_CUDA(cudaEventRecord(end, second));
  ASSERT_CUDA(cudaDeviceSynchronize());
  EXPECT_NEAR(elapsed_ms(begin, end), 7, 0.1);
}

TEST(FakeClock, AHostThatWaitsIsAsLateAsWhatItWaitedFor) {
  const cudaStream_t first = make_stream(), second = make_stream();
  const cudaEvent_t begin = make_event(), end = make_event();
  ASSERT_CUDA(cudaEventRecord(begin, first));
  ASSERT_CUDA(enqueue_ns(first, 4 * kMs));
  ASSERT_CUDA(cudaStreamSynchronize(first));
  ASSERT_CUDA(enqueue_ns(second, kMs));  // cannot begin before
  ASSERT_CUDA(cudaEventRecord(end, second));
  ASSERT_CUDA(cudaDeviceSynchronize());
  EXPECT_NEAR(elapsed_ms(begin, end), 5, 0.1);
}

TEST(FakeClock, AQuestionIsAnsweredAsOfTheHostsTime) {
  const cudaStream_t stream = make_stream();
  const cudaEvent_t event = make_event();
  ASSERT_CUDA(enqueue_ns(stream, 1000 * kMs));
  ASSERT_CUDA(cudaEventRecord(event, stream));
  // Really nothing is left to do, but the host is not there yet.
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  ASSERT_CUDA(cudaEventSynchronize(event));
  EXPECT_CUDA(cudaEventQuery(event));
}

TEST(FakeClock, RealTimeDoesNotCount) {
  const cudaStream_t stream = make_stream();
  const cudaEvent_t begin = make_event(), end = make_event();
  ASSERT_CUDA(cudaEventRecord(begin, stream));
  // cannot fail by chance: on the fake's clock nothing passes meanwhile.
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  ASSERT_CUDA(cudaEventRecord(end, stream));
  ASSERT_CUDA(cudaDeviceSynchronize());
  EXPECT_LT(elapsed_ms(begin, end), 1);
}

TEST(FakeEvents, OnlyTimedOnesThatWereReachedHaveATime) {
  const cudaStream_t stream = make_stream();
  const cudaEvent_t begin = make_event(), untimed = make_event(cudaEventDisableTiming);
  const cudaEvent_t never = make_event();
  float ms = 0;
  ASSERT_CUDA(cudaEventRecord(begin, stream));
  ASSERT_CUDA(cudaEventRecord(untimed, stream));
  EXPECT_EQ(cudaEventElapsedTime(&ms, begin, untimed), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventElapsedTime(&ms, begin, never), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

}  // namespace
}  // namespace fake_cuda
