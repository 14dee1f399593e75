// Device memory, page-locked memory, and copies between them.

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "tests/fake_cuda/fake_cuda_fixture.h"

namespace fake_cuda {
namespace {

constexpr size_t kBytes = 64 << 10;

// A memfd, and mappings of it that end with the object.
class SharedFile {
 public:
  SharedFile() : file_(memfd_create("test", MFD_CLOEXEC)) {
    EXPECT_EQ(ftruncate(file_, kBytes), 0);
  }
  ~SharedFile() {
    for (void* mapped : mapped_) munmap(mapped, kBytes);
    close(file_);
  }
  std::byte* map(int protection, int flags) {
    void* const mapped = mmap(nullptr, kBytes, protection, flags, file_, 0);
    EXPECT_NE(mapped, MAP_FAILED);
    mapped_.push_back(mapped);
    return static_cast<std::byte*>(mapped);
  }

 private:
  int file_;
  std::vector<void*> mapped_;
};

constexpr int kReadWrite = PROT_READ | PROT_WRITE;

TEST(FakeDeviceMemory, TheHostCannotReadItButByTheAlias) {
  std::byte* const memory = make_device_memory(kBytes);
  ASSERT_CUDA(cudaMemset(memory, 7, kBytes));
  ASSERT_CUDA(cudaDeviceSynchronize());
  EXPECT_EQ(static_cast<std::byte*>(fake_cuda_alias(memory))[kBytes - 1], std::byte{7});
  EXPECT_DEATH((void)*static_cast<volatile std::byte*>(memory), "touched device memory");
  ASSERT_CUDA(cudaFree(memory));
}

TEST(FakeDeviceMemory, WhatIsFreedIsThereAgainAndMoreThanAllIsRefused) {
  size_t free_before = 0, free_after = 0, total = 0;
  ASSERT_CUDA(cudaMemGetInfo(&free_before, &total));
  EXPECT_LT(free_before, total);  // the context
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, free_before + 1), cudaErrorMemoryAllocation);
  ASSERT_CUDA(cudaMalloc(&memory, free_before / 2));
  EXPECT_EQ(cudaMalloc(&memory, free_before), cudaErrorMemoryAllocation);
  ASSERT_CUDA(cudaFree(memory));
  ASSERT_CUDA(cudaMemGetInfo(&free_after, &total));
  EXPECT_EQ(free_before, free_after);
  EXPECT_EQ(cudaFree(&total), cudaErrorInvalidValue);
}

TEST(FakePinning, AReadOnlySharedMappingIsRefusedEitherWay) {
  SharedFile file;
  std::byte* const memory = file.map(PROT_READ, MAP_SHARED);
  EXPECT_EQ(cudaHostRegister(memory, kBytes, cudaHostRegisterDefault), cudaErrorInvalidValue);
  EXPECT_EQ(cudaHostRegister(memory, kBytes, cudaHostRegisterReadOnly), cudaErrorNotSupported);
  int supported = -1;
  ASSERT_CUDA(cudaDeviceGetAttribute(&supported, cudaDevAttrHostRegisterReadOnlySupported, 0));
  EXPECT_EQ(supported, 0);
}

TEST(FakePinning, AMappingThatBecomesReadOnlyLaterStaysPinned) {
  SharedFile file;
  std::byte* const memory = file.map(kReadWrite, MAP_SHARED);
  ASSERT_CUDA(cudaHostRegister(memory, kBytes, cudaHostRegisterDefault));
  ASSERT_EQ(mprotect(memory, kBytes, PROT_READ), 0);
  cudaPointerAttributes attributes;
  ASSERT_CUDA(cudaPointerGetAttributes(&attributes, memory + kBytes - 1));
  EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
  EXPECT_EQ(cudaHostRegister(memory, kBytes, cudaHostRegisterDefault),
            cudaErrorHostMemoryAlreadyRegistered);
  ASSERT_CUDA(cudaHostUnregister(memory));
  EXPECT_EQ(cudaHostUnregister(memory), cudaErrorHostMemoryNotRegistered);
}

TEST(FakePinning, APrivateMappingThatIsPinnedNoLongerSeesTheFile) {
  SharedFile file;
  std::byte* const theirs = file.map(kReadWrite, MAP_SHARED);
  std::byte* const ours = file.map(kReadWrite, MAP_PRIVATE);
  theirs[5] = std::byte{1};
  ASSERT_CUDA(cudaHostRegister(ours, kBytes, cudaHostRegisterDefault));
  EXPECT_EQ(ours[5], std::byte{1});
  theirs[5] = std::byte{2};
  EXPECT_EQ(ours[5], std::byte{1});  // stale, as with CUDA
  ASSERT_CUDA(cudaHostUnregister(ours));
}

TEST(FakePinning, ARangeWithAHoleIsRefused) {
  SharedFile file;
  std::byte* const memory = file.map(kReadWrite, MAP_SHARED);
  ASSERT_EQ(munmap(memory + kBytes / 2, kBytes / 4), 0);
  EXPECT_EQ(cudaHostRegister(memory, kBytes, cudaHostRegisterDefault), cudaErrorInvalidValue);
}

TEST(FakeCopies, BytesGoUpAndDown) {
  const cudaStream_t stream = make_stream();
  std::byte* const from = make_pinned_memory(kBytes);
  std::byte* const to = make_pinned_memory(kBytes);
  std::byte* const device = make_device_memory(kBytes);
  std::memset(from, 3, kBytes);
  std::memset(to, 0, kBytes);
  ASSERT_CUDA(cudaMemcpyAsync(device, from, kBytes, cudaMemcpyHostToDevice, stream));
  ASSERT_CUDA(cudaMemcpyAsync(to, device, kBytes, cudaMemcpyDeviceToHost, stream));
  ASSERT_CUDA(cudaStreamSynchronize(stream));
  EXPECT_EQ(std::memcmp(from, to, kBytes), 0);
}

TEST(FakeCopies, APageableOneBlocksTheCaller) {
  const cudaStream_t stream = make_stream();
  std::byte* const device = make_device_memory(kBytes);
  std::vector<std::byte> pageable(kBytes, std::byte{4});
  constexpr int64_t kWorkNs = 5'000'000;
  ASSERT_CUDA(enqueue_ns(stream, kWorkNs));
  const int64_t before_ns = fake_cuda_host_ns();
  ASSERT_CUDA(cudaMemcpyAsync(device, pageable.data(), kBytes, cudaMemcpyHostToDevice, stream));
  EXPECT_GE(fake_cuda_host_ns(), before_ns + kWorkNs / 2);
  EXPECT_EQ(static_cast<std::byte*>(fake_cuda_alias(device))[0], std::byte{4});
}

TEST(FakeCopies, APinnedOneDoesNotBlockTheCaller) {
  const cudaStream_t stream = make_stream();
  std::byte* const device = make_device_memory(kBytes);
  std::byte* const pinned = make_pinned_memory(kBytes);
  constexpr int64_t kWorkNs = 5'000'000;
  ASSERT_CUDA(enqueue_ns(stream, kWorkNs));
  const int64_t before_ns = fake_cuda_host_ns();
  ASSERT_CUDA(cudaMemcpyAsync(device, pinned, kBytes, cudaMemcpyHostToDevice, stream));
  EXPECT_LT(fake_cuda_host_ns(), before_ns + kWorkNs / 2);
  ASSERT_CUDA(cudaStreamSynchronize(stream));
}

TEST(FakeCopies, AcrossTwoRegistrationsOrHalfInOneIsRefused) {
  SharedFile file;
  std::byte* const memory = file.map(kReadWrite, MAP_SHARED);
  std::byte* const device = make_device_memory(kBytes);
  ASSERT_CUDA(cudaHostRegister(memory, kBytes / 2, cudaHostRegisterDefault));
  EXPECT_EQ(cudaMemcpyAsync(device, memory, kBytes, cudaMemcpyHostToDevice, nullptr),
            cudaErrorInvalidValue);
  ASSERT_CUDA(cudaHostRegister(memory + kBytes / 2, kBytes / 2, cudaHostRegisterDefault));
  EXPECT_EQ(cudaMemcpyAsync(device, memory, kBytes, cudaMemcpyHostToDevice, nullptr),
            cudaErrorInvalidValue);
  EXPECT_CUDA(cudaMemcpyAsync(device, memory, kBytes / 2, cudaMemcpyHostToDevice, nullptr));
  EXPECT_CUDA(cudaDeviceSynchronize());
  EXPECT_CUDA(cudaHostUnregister(memory));
  EXPECT_CUDA(cudaHostUnregister(memory + kBytes / 2));
}

TEST(FakeCopies, TheKindMustBeThatOfTheAddresses) {
  std::byte* const device = make_device_memory(kBytes);
  std::byte* const pinned = make_pinned_memory(kBytes);
  EXPECT_EQ(cudaMemcpyAsync(device, pinned, kBytes, cudaMemcpyDeviceToHost, nullptr),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(device, pinned, 2 * kBytes, cudaMemcpyHostToDevice, nullptr),
            cudaErrorInvalidValue);  // beyond its allocation
}

}  // namespace
}  // namespace fake_cuda
