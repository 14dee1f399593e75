// The real CudaDevice, out of libelixir_cuda.so, on a GPU: every function against memcpy.

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fcntl.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <torch/version.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "base/clock.h"
#include "base/compute_type_names.h"
#include "base/dynamic_library.h"
#include "base/gpu.h"
#include "base/throw_error.h"
#include "client/torch_device/cuda_library.h"
#include "client/torch_device/torch_stream.h"
#include "kernels/gpu_probe.h"
#include "optim_cpu/gradients.h"
#include "shm/segment.h"
#include "tests/support/matchers.h"
#include "tests/support/thrown.h"

namespace elixir {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

std::vector<std::byte> random_bytes(size_t bytes, unsigned seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> result(bytes);
  for (std::byte& b : result) b = static_cast<std::byte>(random());
  return result;
}

class CudaGpuTest : public ::testing::Test {
 protected:
  CudaGpuTest() { start(0); }
  void start(uint64_t limit_bytes) {
    device_.reset();
    CudaLibrary* cuda = value_or_throw(load_cuda_library());
    device_ = value_or_throw(cuda->make_device(0, limit_bytes));
    done_ = device_->create_event();
  }
  std::byte* device_memory(size_t bytes) { return device_->allocate(bytes, "a test", "less"); }
  void finish(Stream stream) {
    device_->record(done_, stream);
    device_->synchronize(done_);
  }
  std::vector<std::byte> bytes_of(const std::byte* device, size_t bytes) {
    std::vector<std::byte> result(bytes);
    device_->download(Stream::kCompute, result.data(), device, bytes);
    finish(Stream::kCompute);
    return result;
  }
  // An operator of torch would find an error that a refused call left behind.
  void expect_torch_works() {
    const torch::Tensor ones = torch::ones({1000}, torch_device(*device_));
    EXPECT_EQ(ones.sum().item<float>(), 1000);
  }

  std::unique_ptr<Device> device_;
  DeviceEvent done_;
};

TEST_F(CudaGpuTest, TellsWhatThereIs) {
  const CudaDevices& found = (*load_cuda_library())->devices();
  ASSERT_FALSE(found.devices.empty());
  EXPECT_TRUE(found.why_none.ok());
  EXPECT_FALSE(found.driver_version.empty());
  const CudaDeviceInfo& gpu = found.devices[0];
  EXPECT_FALSE(gpu.name.empty());
  EXPECT_GT(gpu.memory_bytes, kMiB);
  EXPECT_THAT(gpu.pci_address, MatchesRegex("[0-9a-f]+:[0-9a-f]+:[0-9a-f]+\\.[0-9]"));
  EXPECT_THAT(gpu.uuid, StartsWith("GPU-"));
  EXPECT_EQ(gpu.uuid.size(), std::strlen("GPU-") + 36);
  EXPECT_GE(gpu.compute_major, 7);
  const auto beyond = static_cast<int>(found.devices.size());
  EXPECT_EQ((*load_cuda_library())->make_device(beyond, 0).status().code(), Code::kInvalidArgument);
}

TEST_F(CudaGpuTest, MemoryIsAlignedAndZero) {
  for (const size_t bytes : {size_t{1}, size_t{1000}, 5 * kMiB + 3}) {
    std::byte* memory = device_memory(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 256, 0u);
    EXPECT_EQ(bytes_of(memory, bytes), std::vector<std::byte>(bytes));
  }
}

TEST_F(CudaGpuTest, CopiesOfAnySizePinnedOrNot) {
  std::vector<std::byte> there = random_bytes(9 * kMiB, 1), back(there.size());
  std::byte* block = device_memory(there.size());
  std::byte* other = device_memory(there.size());
  for (const bool pinned : {false, true}) {
    if (pinned) {
      ASSERT_TRUE(device_->pin(there.data(), there.size()).ok());
      ASSERT_TRUE(device_->pin(back.data(), back.size()).ok());
    }
    for (const size_t bytes : {size_t{1}, size_t{255}, kMiB + 7, there.size() - 13}) {
      std::memset(back.data(), 0, back.size());
      const DeviceEvent up = device_->create_event(), copied = device_->create_event();
      device_->upload(Stream::kUpload, block + 1, there.data() + 5, bytes);
      device_->record(up, Stream::kUpload);
      device_->wait(Stream::kGather, up);
      device_->copy(Stream::kGather, other + 3, block + 1, bytes);
      device_->record(copied, Stream::kGather);
      device_->wait(Stream::kDownload, copied);
      device_->download(Stream::kDownload, back.data() + 2, other + 3, bytes);
      finish(Stream::kDownload);
      EXPECT_EQ(std::memcmp(back.data() + 2, there.data() + 5, bytes), 0)
          << bytes << (pinned ? " pinned" : "");
      EXPECT_EQ(back[bytes + 2], std::byte{0});
    }
  }
  device_->unpin(there.data());
  device_->unpin(back.data());
  device_->zero(Stream::kCompute, block, there.size());
  EXPECT_EQ(bytes_of(block, there.size()), std::vector<std::byte>(there.size()));
}

// As a trainer has elixird's params: a mapping for writing of a sealed memfd, protected once it is
// page-locked. What elixird writes afterwards is what is uploaded. (Of a private mapping CUDA would
// page-lock copies.)
TEST_F(CudaGpuTest, WhatATrainerOnlyReadsIsPageLockedAndNeverStale) {
  const size_t bytes = 4 * kMiB;
  shm::Segment theirs = value_or_throw(shm::Segment::create("elixir-test", bytes));
  shm::Segment ours = value_or_throw(shm::Segment::map(
      UniqueFd(::fcntl(theirs.fd(), F_DUPFD_CLOEXEC, 0)), bytes, shm::Access::kReadWrite));
  ASSERT_TRUE(theirs.close_to_new_writers().ok());
  must(device_->pin(ours.data(), bytes));
  ASSERT_TRUE(ours.protect().ok());
  std::byte* block = device_memory(bytes);
  for (const unsigned seed : {2u, 3u}) {
    const std::vector<std::byte> values = random_bytes(bytes, seed);
    std::memcpy(theirs.data(), values.data(), bytes);
    device_->upload(Stream::kUpload, block, ours.data(), bytes);
    finish(Stream::kUpload);
    EXPECT_EQ(bytes_of(block, bytes), values);
  }
  device_->unpin(ours.data());
  expect_torch_works();
}

TEST_F(CudaGpuTest, ARefusedPinLeavesTheDeviceUsable) {
  std::vector<std::byte> host = random_bytes(kMiB, 3);
  ASSERT_TRUE(device_->pin(host.data(), host.size()).ok());
  const Status again = device_->pin(host.data() + 4096, 4096);  // is registered already
  EXPECT_FALSE(again.ok());
  EXPECT_THAT(again.message(), HasSubstr("cannot page-lock"));
  device_->unpin(host.data() + 4096);
  expect_torch_works();
  device_->unpin(host.data());
  EXPECT_TRUE(device_->pin(host.data(), host.size()).ok());
  device_->unpin(host.data());
}

TEST_F(CudaGpuTest, ThousandsOfEvents) {
  std::vector<std::byte> host = random_bytes(kMiB, 4);
  std::byte* block = device_memory(kMiB);
  std::vector<DeviceEvent> events;
  for (int i = 0; i < 4000; ++i) {
    events.push_back(device_->create_event());
    EXPECT_TRUE(device_->done(events.back()));
  }
  for (size_t i = 0; i < events.size(); ++i) {
    const Stream stream = i % 2 == 0 ? Stream::kUpload : Stream::kReduce;
    if (i > 0) device_->wait(stream, events[i - 1]);
    device_->copy(stream, block + (i + 1) % 1024, block + i % 1024, 1);
    if (i == 0) device_->upload(stream, block, host.data(), 1);
    device_->record(events[i], stream);
  }
  device_->synchronize(events.back());
  for (const DeviceEvent event : events) EXPECT_TRUE(device_->done(event));
}

TEST_F(CudaGpuTest, UpdatesWithTheBitsOfTheCpu) {
  constexpr size_t kNumel = 100003;
  torch::manual_seed(1);
  const std::vector<torch::Tensor> host = {torch::randn(kNumel), torch::randn(kNumel),
                                           torch::rand(kNumel), torch::randn(kNumel)};
  std::vector<std::byte*> on_device;
  for (const torch::Tensor& array : host) {
    on_device.push_back(device_memory(array.nbytes()));
    device_->upload(Stream::kUpload, on_device.back(), static_cast<std::byte*>(array.data_ptr()),
                    array.nbytes());
  }
  const auto span = [&](const void* const* grads, void* param, void* avg, void* sq) {
    return optim::UpdateSpan{.grads = grads,
                             .param = param,
                             .moments = {static_cast<float*>(avg), static_cast<float*>(sq)},
                             .numel = kNumel};
  };
  const optim::AdamStep step = optim::make_adam_step({}, 3, 0.5);
  const void* device_grads[] = {on_device[3]};
  device_->update(Stream::kUpload, span(device_grads, on_device[0], on_device[1], on_device[2]),
                  step);
  finish(Stream::kUpload);
  const void* host_grads[] = {host[3].data_ptr()};
  optim::adam_update(optim::Isa::kScalar,
                     span(host_grads, host[0].data_ptr(), host[1].data_ptr(), host[2].data_ptr()),
                     step);
  for (size_t i = 0; i < 3; ++i) {
    const std::vector<std::byte> bits = bytes_of(on_device[i], host[i].nbytes());
    EXPECT_EQ(std::memcmp(bits.data(), host[i].data_ptr(), bits.size()), 0) << i;
  }
}

TEST_F(CudaGpuTest, TakesTheSquaredNormWithTheBitsOfTheCpu) {
  for (const ComputeType type : {ComputeType::kBf16, ComputeType::kFp16, ComputeType::kFp32}) {
    constexpr size_t kNumel = 1'000'003;  // of any bits
    const std::vector<std::byte> values = random_bytes(kNumel * element_bytes(type), 5);
    const void* const grads[] = {values.data()};
    NormSum expected = {}, sum = {};
    optim::take_gradients(optim::best_isa(), {.type = type, .grads = grads, .numel = kNumel},
                          &expected);
    std::byte* const block = device_memory(values.size());
    std::byte* const result = device_memory(sizeof sum);
    device_->upload(Stream::kReduce, block, values.data(), values.size());
    for (int run = 0; run < 2; ++run) {  // the second replaces the first
      device_->squared_norm(Stream::kReduce, type, block, kNumel, result);
    }
    device_->download(Stream::kReduce, reinterpret_cast<std::byte*>(&sum), result, sizeof sum);
    finish(Stream::kReduce);
    EXPECT_EQ(std::memcmp(&sum, &expected, sizeof sum), 0) << compute_type_name(type);
    EXPECT_GT(sum.nonfinite, 0u);
  }
}

TEST_F(CudaGpuTest, SpansLieOnTheHostsClock) {
  constexpr size_t kBytes = 64 * kMiB;
  std::byte* const block = device_memory(kBytes);
  std::vector<std::byte> host(kBytes);
  ASSERT_TRUE(device_->pin(host.data(), kBytes).ok());
  device_->keep_spans();
  const int64_t begin_ns = monotonic_ns();
  for (int i = 0; i < 3; ++i) device_->upload(Stream::kUpload, block, host.data(), kBytes);
  finish(Stream::kUpload);
  device_->download(Stream::kDownload, host.data(), block, kBytes);
  finish(Stream::kDownload);
  const int64_t end_ns = monotonic_ns();
  const std::vector<StreamSpan> spans = device_->take_spans();
  ASSERT_EQ(spans.size(), 4u);
  constexpr int64_t kSlackNs = 200'000;  // of the anchor: the way of an answer to the host
  int64_t at_ns = begin_ns - kSlackNs;
  for (const StreamSpan& span : spans) {
    EXPECT_GE(span.begin_ns, at_ns);
    EXPECT_GT(span.end_ns, span.begin_ns);
    EXPECT_EQ(span.bytes, kBytes);
    at_ns = span.end_ns - 2'000;  // a float's step
  }
  EXPECT_LE(at_ns, end_ns + kSlackNs);
  // Between the rates of no link at all and of no link that there is.
  EXPECT_LT(device_->link_times().h2d_busy_ns, static_cast<uint64_t>(end_ns - begin_ns));
  EXPECT_GT(device_->link_times().h2d_busy_ns, 3 * kBytes / 1000);
  device_->unpin(host.data());
}

TEST_F(CudaGpuTest, ACollectivesStreamIsTorchsCurrentOneUnderAGuard) {
  const c10::impl::VirtualGuardImpl guard_of(c10::DeviceType::CUDA);
  const c10::Stream before = guard_of.getStream(torch_device(*device_));
  std::set<c10::StreamId> seen = {before.id()};
  for (const Stream stream :
       {Stream::kUpload, Stream::kDownload, Stream::kGather, Stream::kReduce}) {
    const c10::StreamGuard guard(torch_stream(device_->begin_collective(stream).value()));
    EXPECT_TRUE(seen.insert(guard_of.getStream(torch_device(*device_)).id()).second);
    // And kCompute follows it.
    std::byte* block = device_memory(64);
    device_->zero(Stream::kCompute, block, 64);
    finish(stream);
  }
  EXPECT_EQ(guard_of.getStream(torch_device(*device_)), before);
}

TEST_F(CudaGpuTest, TheMemoryLimitHoldsForElixirAndForTorch) {
  start(512 * kMiB);
  device_memory(100 * kMiB);
  expect_thrown(Code::kResourceExhausted, {"limit is 512.00 MiB: lower --rcache-blocks"},
                [&] { device_->allocate(500 * kMiB, "the rCache", "lower --rcache-blocks"); });
  EXPECT_THROW(torch::empty({static_cast<int64_t>(500 * kMiB)},
                            torch::dtype(torch::kUInt8).device(torch_device(*device_))),
               c10::OutOfMemoryError);
  expect_torch_works();
  start(0);  // the limit ends with the device
  torch::empty({static_cast<int64_t>(700 * kMiB)},
               torch::dtype(torch::kUInt8).device(torch_device(*device_)));
}

TEST_F(CudaGpuTest, WhatDoesNotFitTheDeviceIsRefusedAndLeavesItUsable) {
  const uint64_t total = (*load_cuda_library())->devices().devices[0].memory_bytes;
  expect_thrown(Code::kResourceExhausted, {"the rCache needs "},
                [&] { device_->allocate(2 * total, "the rCache", "lower --rcache-blocks"); });
  expect_torch_works();
  device_memory(kMiB);
}

TEST_F(CudaGpuTest, NcclGathersAndReducesOnAStream) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  CudaLibrary* cuda = *load_cuda_library();
  auto nccl = value_or_throw(cuda->make_nccl(store, 0, 1, std::chrono::seconds(60)));
  torch::Tensor from = torch::arange(1000, torch_device(*device_)).to(torch::kFloat);
  torch::Tensor to = torch::zeros({1000}, torch_device(*device_));
  const DeviceEvent ready = device_->create_event();
  device_->record(ready, Stream::kCompute);
  device_->wait(Stream::kGather, ready);
  {
    const c10::StreamGuard guard(torch_stream(device_->begin_collective(Stream::kGather).value()));
    nccl->_allgather_base(to, from)->wait();
  }
  finish(Stream::kGather);
  EXPECT_TRUE(torch::equal(from, to));
  nccl->shutdown();
}

// In processes of their own: what torch was asked before the device was made.
class CudaGpuDeathTest : public ::testing::Test {
 protected:
  CudaGpuDeathTest() { ::testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

TEST_F(CudaGpuDeathTest, CudaWorksAfterTorchWasUsedOnTheCpu) {
  const auto train = [] {
    torch::manual_seed(1);
    torch::Tensor x = torch::randn({8}, torch::requires_grad());
    (x * x).sum().backward();  // torch starts its autograd threads
    const auto device = value_or_throw((*load_cuda_library())->make_device(0, 0));
    torch::Tensor y = torch::ones({8}, torch::requires_grad().device(torch_device(*device)));
    (y * 3).sum().backward();
    std::_Exit(y.grad().sum().item<float>() == 24 ? 0 : 1);
  };
  EXPECT_EXIT(train(), ::testing::ExitedWithCode(0), "");
}

TEST_F(CudaGpuDeathTest, NcclCanBeAborted) {
  const auto end_it = [] {
    CudaLibrary* cuda = *load_cuda_library();
    const auto device = value_or_throw(cuda->make_device(0, 0));
    const auto store = c10::make_intrusive<c10d::HashStore>();
    auto nccl = value_or_throw(cuda->make_nccl(store, 0, 1, std::chrono::seconds(60)));
    torch::Tensor tensor = torch::ones({8}, torch_device(*device));
    std::vector<torch::Tensor> tensors = {tensor};
    nccl->allreduce(tensors)->wait();
    const Status aborted = cuda->abort_nccl(*nccl);
    std::cerr << aborted.message() << std::endl;
    std::_Exit(aborted.exit_code());
  };
  EXPECT_EXIT(end_it(), ::testing::ExitedWithCode(0), "");
}

TEST(GpuProbeTest, MeasuresEveryGpu) {
  const auto library =
      value_or_throw(DynamicLibrary::load(cuda_library_search(TORCH_VERSION_MINOR)));
  auto* probe = value_or_throw(library.function<ElixirGpuProbe>(ELIXIR_GPU_PROBE_FUNCTION));
  std::vector<char> text(1 << 16);
  ASSERT_LT(probe(text.data(), text.size(), 64 * kMiB), text.size());
  const auto report = nlohmann::json::parse(text.data());
  std::cout << report.dump(2) << std::endl;
  EXPECT_EQ(report["error"], "");
  ASSERT_EQ(report["gpus"].size(), (*load_cuda_library())->devices().devices.size());
  for (const auto& gpu : report["gpus"]) {
    EXPECT_EQ(gpu["error"], "");
    for (const char* rate : {"h2d_gb_s", "d2h_gb_s", "both_gb_s"}) EXPECT_GT(gpu[rate], 0) << rate;
    EXPECT_GT(gpu["free_bytes"], 0);
  }
}

}  // namespace
}  // namespace elixir
