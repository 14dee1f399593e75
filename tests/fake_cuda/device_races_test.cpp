// The true CudaDevice, out of libelixir_cuda.so, over the fake: what it enqueues is known to the
// vector clocks, so a wait that is left out is found.

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <vector>

#include "base/throw_error.h"
#include "client/torch_device/cuda_library.h"

namespace elixir {
namespace {

constexpr size_t kBytes = 64 << 10;

// Of the fake, which is preloaded.
uint64_t races() {
  static const auto ask = reinterpret_cast<uint64_t (*)()>(dlsym(RTLD_DEFAULT, "fake_cuda_races"));
  EXPECT_NE(ask, nullptr) << "run this by tests/fake_cuda/run.py";
  return ask == nullptr ? 0 : ask();
}

class DeviceRaces : public testing::Test {
 protected:
  DeviceRaces() {
    CudaLibrary* const cuda = value_or_throw(load_cuda_library());
    device_ = value_or_throw(cuda->make_device(0, 0));
    host_.resize(kBytes);
    EXPECT_TRUE(device_->pin(host_.data(), kBytes).ok());
    block_ = device_->allocate(kBytes, "a test", "less");
    other_ = device_->allocate(kBytes, "a test", "less");
    filled_ = device_->create_event();
    unused_ = device_->create_event();
  }
  ~DeviceRaces() override { device_->unpin(host_.data()); }

  // What an rCache block goes through: filled, read by what computes, filled again.
  void use_block(bool wait_for_fill, bool wait_for_readers) {
    for (int i = 0; i < 2; ++i) {
      if (wait_for_readers) device_->wait(Stream::kUpload, unused_);
      device_->upload(Stream::kUpload, block_, host_.data(), kBytes);
      device_->record(filled_, Stream::kUpload);
      if (wait_for_fill) device_->wait(Stream::kCompute, filled_);
      device_->copy(Stream::kCompute, other_, block_, kBytes);
      device_->record(unused_, Stream::kCompute);
    }
  }

  std::unique_ptr<Device> device_;
  std::vector<std::byte> host_;
  std::byte* block_ = nullptr;
  std::byte* other_ = nullptr;
  DeviceEvent filled_, unused_;
};

TEST_F(DeviceRaces, ABlockThatIsFilledAndReadInTurnIsSound) {
  use_block(/*wait_for_fill=*/true, /*wait_for_readers=*/true);
  EXPECT_EQ(races(), 0u);
}

TEST_F(DeviceRaces, AReaderThatDoesNotWaitForTheFillIsFound) {
  const uint64_t before = races();
  use_block(/*wait_for_fill=*/false, /*wait_for_readers=*/true);
  EXPECT_GT(races(), before);
}

TEST_F(DeviceRaces, AFillThatDoesNotWaitForTheReadersIsFound) {
  const uint64_t before = races();
  use_block(/*wait_for_fill=*/true, /*wait_for_readers=*/false);
  EXPECT_GT(races(), before);
}

// Two threads with streams of their own read a block, which a fill follows: the first one's
// operator is enqueued after kCompute has become the second one's stream.
uint64_t races_of_two_readers(Device& device, std::byte* block, const std::byte* host,
                              bool first_ends) {
  const uint64_t before = races();
  const c10::Device cuda(at::kCUDA, 0);
  const c10::impl::VirtualGuardImpl streams(at::kCUDA);
  const c10::Stream first = streams.getStreamFromGlobalPool(cuda);
  const c10::Stream second = streams.getStreamFromGlobalPool(cuda);
  const DeviceEvent unused = device.create_event();
  const at::Tensor values =
      at::from_blob(block, {kBytes}, at::TensorOptions(cuda).dtype(at::kByte));
  {
    const c10::StreamGuard guard(first);
    device.begin_operator("one");
  }
  {
    const c10::StreamGuard guard(second);
    device.begin_operator("another");
  }
  {
    const c10::StreamGuard guard(first);
    (void)values.clone();
    if (first_ends) device.end_operator();
  }
  {
    const c10::StreamGuard guard(second);
    device.end_operator();
    device.record(unused, Stream::kCompute);
  }
  device.wait(Stream::kUpload, unused);
  device.upload(Stream::kUpload, block, host, kBytes);
  return races() - before;
}

TEST_F(DeviceRaces, TheEndOfEachThreadsOperatorIsBeforeTheNextFill) {
  EXPECT_EQ(races_of_two_readers(*device_, block_, host_.data(), /*first_ends=*/true), 0u);
}

TEST_F(DeviceRaces, AThreadThatDoesNotSayThatItsOperatorEndedIsFound) {
  EXPECT_GT(races_of_two_readers(*device_, block_, host_.data(), /*first_ends=*/false), 0u);
}

}  // namespace
}  // namespace elixir
