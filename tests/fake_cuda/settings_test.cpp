// What the FAKE_CUDA_* settings change. Each test is a process of its own, since they are read
// once.

#include <cstdlib>
#include <thread>

#include "tests/fake_cuda/fake_cuda_fixture.h"

namespace fake_cuda {
namespace {

cudaError_t launch() {
  static const char function = 0;
  return cudaLaunchKernel(&function, dim3(1), dim3(1), nullptr, 0, nullptr);
}

// Ends the process well if the body held.
template <class Body>
void in_this_process(const char* name, const char* value, Body body) {
  setenv(name, value, 1);
  body();
  std::exit(testing::Test::HasFailure() ? 1 : 0);
}

class FakeSettings : public testing::Test {
 protected:
  FakeSettings() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

#define EXPECT_SOUND(...) EXPECT_EXIT(__VA_ARGS__, testing::ExitedWithCode(0), "")

TEST_F(FakeSettings, AfterSoManyLaunchesEveryCallFails) {
  EXPECT_SOUND(in_this_process("FAKE_CUDA_FAIL_AFTER", "2", [] {
    const cudaEvent_t event = make_event();
    std::byte* const memory = make_device_memory(64);
    EXPECT_CUDA(launch());
    EXPECT_CUDA(launch());  // this is the one that goes wrong
    EXPECT_EQ(launch(), cudaErrorIllegalAddress);
    EXPECT_EQ(cudaEventRecord(event, nullptr), cudaErrorIllegalAddress);
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaErrorIllegalAddress);
    EXPECT_EQ(cudaFree(memory), cudaErrorIllegalAddress);
    EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
    EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);  // it stays
    EXPECT_EQ(fake_cuda_error(), cudaErrorIllegalAddress);
  }));
}

TEST_F(FakeSettings, AnErrorMayWaitForACallInstead) {
  setenv("FAKE_CUDA_FAIL_CALL", "cudaEventRecord", 1);
  EXPECT_SOUND(in_this_process("FAKE_CUDA_FAIL_AFTER", "1", [] {
    const cudaEvent_t event = make_event();
    for (int i = 0; i < 5; ++i) EXPECT_CUDA(launch());
    EXPECT_CUDA(cudaEventRecord(event, nullptr));
    EXPECT_EQ(cudaEventRecord(event, nullptr), cudaErrorIllegalAddress);
    EXPECT_EQ(launch(), cudaErrorIllegalAddress);
  }));
  unsetenv("FAKE_CUDA_FAIL_CALL");
}

TEST_F(FakeSettings, EachThreadHasItsOwnDeviceAndContextsAreMadeWhereItCalls) {
  EXPECT_SOUND(in_this_process("FAKE_CUDA_DEVICES", "3", [] {
    int count = 0, device = -1;
    EXPECT_CUDA(cudaGetDeviceCount(&count));
    EXPECT_EQ(count, 3);
    EXPECT_EQ(fake_cuda_contexts(0), 0);
    EXPECT_CUDA(cudaSetDevice(1));
    std::byte* const memory = make_device_memory(64);
    EXPECT_EQ(fake_cuda_device_of(memory), 1);
    EXPECT_EQ(fake_cuda_contexts(0), 0);
    EXPECT_EQ(fake_cuda_contexts(1), 1);
    std::thread([&] {
      EXPECT_CUDA(cudaGetDevice(&device));
      EXPECT_EQ(device, 0);
      EXPECT_CUDA(cudaDeviceSynchronize());  // and so it makes a context there
    }).join();
    EXPECT_EQ(fake_cuda_contexts(0), 1);
    EXPECT_CUDA(cudaGetDevice(&device));
    EXPECT_EQ(device, 1);
    EXPECT_EQ(cudaSetDevice(3), cudaErrorInvalidDevice);
  }));
}

TEST_F(FakeSettings, CopiesTakeTheLinksTime) {
  EXPECT_SOUND(in_this_process("FAKE_CUDA_LINK_GB_S", "10", [] {
    constexpr size_t kBytes = 10 << 20;
    const cudaEvent_t begin = make_event(), end = make_event();
    std::byte* const device = make_device_memory(kBytes);
    std::byte* const pinned = make_pinned_memory(kBytes);
    EXPECT_CUDA(cudaEventRecord(begin, nullptr));
    EXPECT_CUDA(cudaMemcpyAsync(device, pinned, kBytes, cudaMemcpyHostToDevice, nullptr));
    EXPECT_CUDA(cudaEventRecord(end, nullptr));
    EXPECT_CUDA(cudaDeviceSynchronize());
    float ms = 0;
    EXPECT_CUDA(cudaEventElapsedTime(&ms, begin, end));
    EXPECT_NEAR(ms, 1.05, 0.02);
  }));
}

TEST_F(FakeSettings, RegisteredMemoryMayBeLimited) {
  EXPECT_SOUND(in_this_process("FAKE_CUDA_PIN_LIMIT_MIB", "1", [] {
    static char memory[2 << 20];
    EXPECT_CUDA(cudaHostRegister(memory, 512 << 10, cudaHostRegisterDefault));
    EXPECT_EQ(cudaHostRegister(memory + (1 << 20), 768 << 10, cudaHostRegisterDefault),
              cudaErrorMemoryAllocation);
  }));
}

TEST_F(FakeSettings, RandomDelaysKeepTheOrder) {
  EXPECT_SOUND(in_this_process("FAKE_CUDA_DELAY_US", "500", [] {
    constexpr size_t kBytes = 64;
    const cudaStream_t up = make_stream(), down = make_stream();
    const cudaEvent_t filled = make_event(), taken = make_event();
    std::byte* const device = make_device_memory(kBytes);
    std::byte* const from = make_pinned_memory(50 * kBytes);
    std::byte* const to = make_pinned_memory(50 * kBytes);
    for (int i = 0; i < 50; ++i) {
      from[i * kBytes] = static_cast<std::byte>(i);
      EXPECT_CUDA(cudaStreamWaitEvent(up, taken, 0));
      EXPECT_CUDA(cudaMemcpyAsync(device, from + i * kBytes, kBytes, cudaMemcpyHostToDevice, up));
      EXPECT_CUDA(cudaEventRecord(filled, up));
      EXPECT_CUDA(cudaStreamWaitEvent(down, filled, 0));
      EXPECT_CUDA(cudaMemcpyAsync(to + i * kBytes, device, kBytes, cudaMemcpyDeviceToHost, down));
      EXPECT_CUDA(cudaEventRecord(taken, down));
    }
    EXPECT_CUDA(cudaDeviceSynchronize());
    for (int i = 0; i < 50; ++i) EXPECT_EQ(to[i * kBytes], static_cast<std::byte>(i));
    EXPECT_EQ(fake_cuda_races(), 0u);
  }));
}

TEST_F(FakeSettings, ANumberThatIsNoneEndsTheProcess) {
  EXPECT_EXIT(in_this_process("FAKE_CUDA_KERNEL_US", "2ms", [] { make_stream(); }),
              testing::ExitedWithCode(2), "FAKE_CUDA_KERNEL_US=2ms is no number");
}

}  // namespace
}  // namespace fake_cuda
