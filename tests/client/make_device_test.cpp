#include "client/torch_device/make_device.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/thrown.h"

namespace elixir {
namespace {

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
    expect_thrown(Code::kInvalidArgument, {"on the CPU alone, and the device is 'cuda'"},
                  [&] { make_device(c10::kCUDA, 0, emulated); });
  }
}

}  // namespace
}  // namespace elixir
