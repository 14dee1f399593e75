#include "client/torch_device/make_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "base/throw_error.h"

namespace elixir {
namespace {

using ::testing::HasSubstr;

TEST(MakeDevice, ALinkIsEmulatedByTheCpuAlone) {
  const HostDeviceOptions options{.link = HostLink{10, 10, 0, 50'000}};
  const PlacedDevice placed = make_device(c10::kCPU, 0, options);
  EXPECT_EQ(placed.name, "cpu");
  constexpr size_t kBytes = 4096;
  const std::vector<std::byte> host(kBytes);
  const DeviceEvent up = placed.device->create_event();
  placed.device->upload(Stream::kUpload, placed.device->allocate(kBytes, "a block", "less"),
                        host.data(), kBytes);
  placed.device->record(up, Stream::kUpload);
  EXPECT_FALSE(placed.device->done(up));
  placed.device->synchronize(up);
  for (const HostDeviceOptions& emulated : {options, HostDeviceOptions{.operator_us = 1}}) {
    try {
      make_device(c10::kCUDA, 0, emulated);
      ADD_FAILURE() << "a link emulated by CUDA";
    } catch (const Error& failure) {
      EXPECT_EQ(failure.code(), Code::kInvalidArgument);
      EXPECT_THAT(failure.what(), HasSubstr("on the CPU alone, and the device is 'cuda'"));
    }
  }
}

}  // namespace
}  // namespace elixir
